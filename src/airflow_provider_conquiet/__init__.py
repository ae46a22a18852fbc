"""conquiet for Airflow: hook, operators, sensors, triggers and decorators over Redis Streams queues."""
