"""SIGKILL at the worst moment: after a commit and before its ack, with more messages pending."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from examples.demo.processes import DemoError
from examples.demo.watcher import Backlog

_POLL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What was done and what was pending when the worker died."""

    pid: int
    #: On the clock of `time.monotonic()`.
    at: float
    #: In the database.
    committed: int
    backlog: Backlog

    @property
    def unacked(self) -> int:
        """Committed, and not acked: only the inbox knows that they are done."""
        return self.committed - self.backlog.acked

    @property
    def unhandled(self) -> int:
        """Read by the worker, and not committed."""
        return self.backlog.pending - self.unacked

    def __str__(self) -> str:
        return (
            f"SIGKILL to process {self.pid}: {self.committed:,} orders committed, {self.backlog.pending} "
            f"messages pending, {self.unacked} of them committed and not acked"
        )


def kill_in_the_middle(
    pid: int, read_state: Callable[[], tuple[int, Backlog]], *, from_rows: int, timeout_s: float = 900
) -> Killed:
    """Kill the process once so many rows are committed, between a commit and its ack.

    Raises:
        DemoError: the process ended before that, or it took too long.
    """
    worker = psutil.Process(pid)
    deadline = time.monotonic() + timeout_s
    while True:
        rows, backlog = read_state()
        if rows >= from_rows:
            # Stopped, so that nothing changes between this reading and the kill.
            _send(worker, signal.SIGSTOP)
            rows, backlog = read_state()
            killed = Killed(pid=pid, at=time.monotonic(), committed=rows, backlog=backlog)
            if killed.unacked > 0 and killed.unhandled > 0:
                _send(worker, signal.SIGKILL)
                _wait_for_end(worker)
                return killed
            _send(worker, signal.SIGCONT)
        if time.monotonic() > deadline or (backlog.waiting == 0 and backlog.acked > 0):
            raise DemoError("the worker was done before it could be killed; more --orders give it more time")
        time.sleep(_POLL_S)


def _send(worker: psutil.Process, number: signal.Signals) -> None:
    try:
        os.kill(worker.pid, number)
    except ProcessLookupError:
        raise DemoError(f"the worker {worker.pid} ended before it could be killed") from None


def _wait_for_end(worker: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        # Its parent may reap it later.
        while worker.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_POLL_S)
