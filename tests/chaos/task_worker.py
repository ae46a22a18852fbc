"""One worker of a chaos run of tasks, with its pool; ends at SIGTERM, or with its parent."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

from conquiet.cli.signals import received_signals
from conquiet.logs import log_to_stderr
from conquiet.tasks import ProcessWorker, Worker, WorkerConfig
from conquiet.tasks.worker.run import run_until_signals
from tests.chaos.plan import open_database
from tests.chaos.task_app import make_app
from tests.chaos.task_plan import DB, HEARTBEAT_TTL_S, NAP, QUEUES, TaskWorkerOrder
from tests.chaos.worker import end_with_parent

_ORDER = "CONQUIET_CHAOS_ORDER"


def _settings(order: TaskWorkerOrder) -> dict[str, Any]:
    match order.pool:
        case "process":
            return {"queues": QUEUES, "concurrency": 4}
        case "thread":
            return {"queues": (DB,), "concurrency": 10}
    return {"queues": (NAP,), "concurrency": 40}


def _work(order: TaskWorkerOrder) -> None:
    config = WorkerConfig(
        name=order.name, pool=order.pool, heartbeat_ttl_s=HEARTBEAT_TTL_S, **_settings(order)
    )
    with received_signals() as received:
        worker: ProcessWorker | Worker
        if order.pool == "process":
            worker = ProcessWorker(f"{__spec__.name}:app", config, log_level="info")
        else:
            worker = Worker(app, config)
        run_until_signals(worker, received)


if __name__ == "__main__":
    # A child of the process pool gets its order as this one did.
    os.environ[_ORDER] = sys.argv[1]
    log_to_stderr("info", "text")
    logging.getLogger("chaos").setLevel(logging.INFO)
    threading.Thread(target=end_with_parent, daemon=True).start()

_order = TaskWorkerOrder.decode(os.environ[_ORDER])
app = make_app(_order.url, open_database(_order.database, _order.name), _order.seed)

if __name__ == "__main__":
    _work(_order)
