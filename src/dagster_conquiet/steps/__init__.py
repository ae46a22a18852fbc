"""What happens inside a step, a tick or a check; the modules above turn it into Dagster's definitions."""
