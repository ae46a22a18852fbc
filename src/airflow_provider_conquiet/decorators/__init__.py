"""`@task.drain`, `@task.enqueue` and `@task.conquiet_task`."""
