"""RunningSlot: which task a child process runs, in memory that its parent sees also after its death."""

from __future__ import annotations

import json
import mmap
import tempfile
import time
from contextlib import suppress
from typing import IO, NamedTuple, Self

_SIZE = 16_384
#: The length of what follows; 0 while nothing runs.
_LENGTH = slice(8, 12)
#: When the parent kills the child, in nanoseconds of the machine's monotonic clock; 0 for never.
_DEADLINE = slice(0, 8)
#: Whether it has imported the app and called its start-up hooks.
_READY = 12
_START = 16


class RunningTask(NamedTuple):
    """One task that a child runs."""

    consumer: str
    queue: str
    priority: int
    entry_id: str
    delivery_count: int
    started_ms: int
    hard_limit_s: float | None


class RunningSlot:
    """One child's; the child writes, the parent reads. Lives as long as either of them has it open."""

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, _SIZE)

    @classmethod
    def create(cls) -> tuple[Self, IO[bytes]]:
        """A new one, and the open file by which a child finds it."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller closes it when the child has it
        file.truncate(_SIZE)
        return cls(file.fileno()), file

    def set_ready(self) -> None:
        """The child is about to read its first task."""
        self._memory[_READY] = 1

    def begin(self, task: RunningTask) -> None:
        """The task runs from now on."""
        text = json.dumps(task).encode()
        if len(text) > _SIZE - _START:
            raise ValueError(f"the names of queue {task.queue[:50]!r} and its worker are too long together")
        memory = self._memory
        memory[_START : _START + len(text)] = text
        # The length last: a child that is killed in between runs nothing.
        memory[_LENGTH] = len(text).to_bytes(4, "little")
        if task.hard_limit_s is not None:
            due = time.monotonic_ns() + round(task.hard_limit_s * 1e9)
            memory[_DEADLINE] = due.to_bytes(8, "little")

    def end(self) -> None:
        """Nothing runs any more."""
        self._memory[_DEADLINE] = b"\0" * 8
        self._memory[_LENGTH] = b"\0" * 4

    @property
    def is_ready(self) -> bool:
        """Whether the child has come to its first read."""
        return bool(self._memory[_READY])

    @property
    def running(self) -> RunningTask | None:
        """What runs; of a living child it may be the one before, or `None`."""
        # Half of one and half of the next; or it was closed, by the thread that has seen the child's end.
        with suppress(ValueError, TypeError):
            length = int.from_bytes(self._memory[_LENGTH], "little")
            text = self._memory[_START : _START + length]
            return RunningTask(*json.loads(text)) if length else None
        return None

    @property
    def is_overdue(self) -> bool:
        """Whether the task has reached its hard time limit."""
        due = int.from_bytes(self._memory[_DEADLINE], "little")
        return 0 < due <= time.monotonic_ns()

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
