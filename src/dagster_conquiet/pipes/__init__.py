"""Dagster Pipes over a stream; the external process needs `dagster-pipes` and `conquiet`, not Dagster."""
