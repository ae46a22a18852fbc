"""conquiet for Airflow: hook, operators, sensors, triggers and decorators over Redis Streams queues."""

from importlib.util import find_spec

from conquiet.errors import MissingExtraError

# Not by importing it: Airflow imports this package while it is imported itself.
if find_spec("airflow") is None:
    raise MissingExtraError("airflow_provider_conquiet", missing="airflow", extra="airflow")
