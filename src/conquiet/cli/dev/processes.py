"""The processes of `conquiet dev`: their lines with a name before each, and none of them outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from conquiet.cli.dev import sessions
from conquiet.cli.exits import UsageError

#: From SIGTERM to the next signal: a worker finishes its tasks, Airflow and Dagster end their components.
_GRACE_S = 10.0


class DevProcesses:
    """Starts processes in a `with` block; at its end, or at the end of this process, all of them are ended.

    Args:
        show: is given each line that one of them prints, with its name before it.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], show: Callable[[str], None]) -> None:
        self._directory = directory
        self._mark = uuid.uuid4().hex
        self._environment = {**environment, sessions.MARK: self._mark}
        self._show = show
        self._started: dict[str, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        # It sees the end of its input when this process dies, also by SIGKILL.
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(sessions.__file__), self._mark],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            # Nothing is left for it, unless the stop was interrupted.
            self._watchdog.communicate()

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of those that were started, by name."""
        return {name: process.pid for name, process in self._started.items()}

    def run(self, name: str, command: Sequence[str]) -> int:
        """Run a command to its end, and return its exit code."""
        process = self._start(name, command)
        for thread in self._threads:
            thread.join()
        return process.wait()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Run a command until the end."""
        self._started[name] = self._start(name, command)

    def ended(self) -> tuple[str, int] | None:
        """One that has ended by itself, with its exit code."""
        for name, process in self._started.items():
            if (code := process.poll()) is not None:
                return name, code
        return None

    def stop(self) -> None:
        """End all of them, with what they have started."""
        left = sessions.end_all(self._mark, set(self.pids.values()), grace_s=_GRACE_S)
        for process in self._started.values():
            process.wait()
        for thread in self._threads:
            thread.join(timeout=1)
        if left:
            self._show(f"conquiet: these processes could not be ended: {', '.join(map(str, left))}")

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[str]:
        try:
            process = subprocess.Popen(
                command,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # A Ctrl-C in the terminal reaches this process alone, which ends them in order.
                start_new_session=True,
            )
        except FileNotFoundError:
            path = self._environment.get("PATH", os.defpath)
            raise UsageError(f"the command {command[0]!r} of {name} is not there; PATH is {path}") from None
        assert self._watchdog.stdin is not None  # noqa: S101 -- for mypy: it was started with a pipe
        self._watchdog.stdin.write(f"{process.pid}\n")
        self._watchdog.stdin.flush()
        thread = threading.Thread(target=self._copy, args=(name, process), daemon=True)
        thread.start()
        self._threads.append(thread)
        return process

    def _copy(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 -- for mypy
        for line in process.stdout:
            self._show(f"{name} | {line.rstrip()}")
