"""The same job on other queues: what becomes of tasks whose worker is killed, and how fast they go."""
