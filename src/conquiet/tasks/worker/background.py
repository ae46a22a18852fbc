"""The threads that a worker has beside its loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from conquiet.tasks.app import TaskApp
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.dead_workers import DeadWorkers
from conquiet.tasks.worker.heartbeat import Heartbeat
from conquiet.tasks.worker.long_tasks import LongTasks
from conquiet.tasks.worker.loop import ConsumerLoop
from conquiet.tasks.worker.stream_ends import StreamEnds


@contextmanager
def background_threads(app: TaskApp, config: WorkerConfig, loops: Sequence[ConsumerLoop]) -> Iterator[None]:
    """Run them for the block."""
    with ExitStack() as running:
        for thread in (
            Heartbeat(app, config, loops),
            LongTasks(app, config, loops),
            DeadWorkers(app, config),
            StreamEnds(app, config),
        ):
            thread.start()
            running.callback(thread.stop)
        yield
