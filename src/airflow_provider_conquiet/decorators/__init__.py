"""`@task.drain` and `@task.enqueue`."""
