"""The demo: orders go through a private server into a database while a worker is killed in the middle."""
