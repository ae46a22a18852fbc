"""A shop in Dagster: copy what you need. `dagster dev -m dagster_defs.definitions` runs it as it stands."""
