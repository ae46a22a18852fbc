"""How Airflow reaches the queues: connection, clients, database."""
