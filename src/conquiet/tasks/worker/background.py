"""What a worker does again and again beside its loops, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from conquiet.tasks.app import TaskApp
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.dead_workers import DeadWorkers
from conquiet.tasks.worker.heartbeat import Heartbeat
from conquiet.tasks.worker.long_tasks import LongTasks
from conquiet.tasks.worker.loop import ConsumerLoop
from conquiet.tasks.worker.stream_ends import StreamEnds


class Rounds(Protocol):
    """Work that is done in rounds, until the worker has ended."""

    #: Of its thread.
    name: str

    def round(self, has_ended: threading.Event) -> float:
        """Do it once; returns after how many seconds again."""

    def close(self) -> None:
        """Called after the last round."""


@contextmanager
def background_threads(app: TaskApp, config: WorkerConfig, loops: Sequence[ConsumerLoop]) -> Iterator[None]:
    """Run them for the block."""
    with ExitStack() as running:
        for work in (
            Heartbeat(app, config, loops),
            LongTasks(app, config, loops),
            DeadWorkers(app, config, loops),
            StreamEnds(app, config),
        ):
            running.enter_context(in_thread(work))
        yield


@contextmanager
def in_thread(work: Rounds) -> Iterator[None]:
    """One round after the other for the block, in a thread; the last one ends before the block does."""
    has_ended = threading.Event()

    def run() -> None:
        wait_s = 0.0
        while not has_ended.wait(wait_s):
            wait_s = work.round(has_ended)

    thread = threading.Thread(target=run, name=f"conquiet-{work.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        work.close()
