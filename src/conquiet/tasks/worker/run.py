"""Runs a worker in the foreground, until a signal ends it."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02


class RunningWorker(Protocol):
    """A worker in threads or processes."""

    @property
    def is_running(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def join(self) -> None: ...


def run_until_signals(
    worker: RunningWorker, received: list[int], has_failed: Callable[[], bool] = lambda: False
) -> None:
    """Stop it at the first signal: what runs is finished. Kill it at the second.

    Args:
        has_failed: whether what runs beside it has; the worker is stopped then, as by a signal.
    """
    worker.start()
    seen = 0
    while worker.is_running:
        if not received and has_failed():
            received.append(signal.SIGTERM)
        if len(received) > seen:
            seen += 1
            if seen == 1:
                _log.warning("stopping: tasks that run are finished; a second signal ends them")
                worker.stop()
            else:
                worker.kill()
        time.sleep(_LOOK_EVERY_S)
    worker.join()
