"""The worker: processes and threads that run tasks."""

from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.process_worker import ProcessWorker, WorkerFailedError
from conquiet.tasks.worker.worker import Worker

__all__ = ["ProcessWorker", "Worker", "WorkerConfig", "WorkerFailedError"]
