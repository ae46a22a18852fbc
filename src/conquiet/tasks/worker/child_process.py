"""ChildProcess: one child of the process pool, as its parent sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from conquiet.tasks.errors import HardTimeLimitError, ProcessDiedError, TaskError
from conquiet.tasks.worker.child import ChildOrder
from conquiet.tasks.worker.slot import RunningSlot, RunningTask

#: A process on another processor is stopped within microseconds.
_STOPS_WITHIN_S = 0.005


class ChildProcess:
    """From its start to its end; the caller's thread alone uses it."""

    def __init__(self, order: ChildOrder) -> None:
        self.name = order.config.name
        self._slot, memory = RunningSlot.create()
        read, self._pipe = os.pipe()
        files = (read, memory.fileno())
        # The app's name is for those who look at the list of processes.
        command = [sys.executable, "-m", "conquiet.tasks.worker", *map(str, files), order.app]
        try:
            with memory:
                # A fresh interpreter: without threads and connections of this one. A group of its own: Ctrl-C
                # is for the parent, and what a task has started can be killed with it.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=files, process_group=0
                )
            os.write(self._pipe, order.to_line())
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(read)
        self._killed_for: TaskError | None = None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has come to its first read."""
        return self._slot.is_ready

    @property
    def running(self) -> RunningTask | None:
        """What it runs, or ran when it died."""
        return self._slot.running

    def stop(self) -> None:
        """Have it finish its task, hand back the others, and end; before its first read it ends at once."""
        with suppress(BrokenPipeError):
            os.write(self._pipe, b"s")
        # It catches this from the moment on at which it has something to finish.
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self, reason: TaskError) -> None:
        """End it now, and whatever its task has started."""
        self._killed_for = reason
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill_if_overdue(self) -> None:
        """Kill it if its task has reached its hard time limit."""
        if not self._slot.is_overdue:
            return
        # Stopped first: else the task could end, and the next one would be killed.
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(_STOPS_WITHIN_S)
        running = self.running
        if self._slot.is_overdue and running is not None and running.hard_limit_s is not None:
            self.kill(HardTimeLimitError(running.hard_limit_s))
        else:
            os.kill(self.pid, signal.SIGCONT)

    def has_ended(self) -> bool:
        """Whether it has; what its task has left running is ended, too, unless it was stopped."""
        code = self._process.poll()
        if code:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return code is not None

    @property
    def was_killed(self) -> bool:
        """Of one that has ended: whether a signal ended it, as from the system or another program."""
        return self._process.returncode < 0

    def cause_of_death(self) -> TaskError | None:
        """Of one that has ended: why, `None` if it was stopped."""
        if self._killed_for is not None:
            return self._killed_for
        code = self._process.returncode
        if code == 0 and self.running is None:
            return None
        if code >= 0:
            return ProcessDiedError(f"ended with exit code {code}")
        try:
            name = f" ({signal.Signals(-code).name})"
        except ValueError:
            name = ""
        return ProcessDiedError(f"was killed by signal {-code}{name}")

    def close(self) -> None:
        """Give back what it used here, when it has ended."""
        os.close(self._pipe)
        self._slot.close()
