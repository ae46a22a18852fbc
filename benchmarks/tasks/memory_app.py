"""The app of a worker whose memory is measured, as its processes import it."""

from __future__ import annotations

import os

from conquiet.tasks import TaskApp

#: The URL of the server and the namespace, for the processes of a pool.
SERVER, NAMESPACE = "BENCH_TASKS_SERVER", "BENCH_TASKS_NAMESPACE"

app = TaskApp(os.environ.get(SERVER), namespace=os.environ.get(NAMESPACE, "bench"))


@app.task(name="begin", result_ttl_s=1)
def begin() -> None:
    """What each of the tasks does."""
