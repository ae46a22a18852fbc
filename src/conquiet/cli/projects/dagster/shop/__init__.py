"""Orders through Dagster."""
