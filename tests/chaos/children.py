"""The processes of a worker's pool, from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_COMMAND = b"conquiet.tasks.worker"


class Child:
    """One process; a signal never reaches another one that has got its number."""

    def __init__(self, pid: int) -> None:
        self._file = os.pidfd_open(pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._file, number)

    def __del__(self) -> None:
        os.close(self._file)


def children_of(pid: int) -> Iterator[Child]:
    """Those that run tasks for a worker; none where the system does not tell."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for number in listed.read_text().split():
                if _COMMAND in Path(f"/proc/{number}/cmdline").read_bytes():
                    yield Child(int(number))
