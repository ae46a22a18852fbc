"""The processes of the demo: each has a log file and a session of its own, and none outlives the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

#: In the environment of everything that is started, so that a process that left its session is found too.
_MARK = "CONQUIET_DEMO"
_POLL_S = 0.05
_TAIL_LINES = 30


class DemoError(Exception):
    """The demo cannot go on; with what happened and the end of the log that shows why."""

    def __init__(self, problem: str, *, log: Path | None = None) -> None:
        super().__init__(problem if log is None else f"{problem}\n{_tail(log)}")
        self.log = log


class Child:
    """One process that was started."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id, which is the id of its session too."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> None:
        """Wait for its good end.

        Raises:
            DemoError: it failed, or did not end in time.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} did not end in {timeout_s:g} s", log=self.log) from None
        if code != 0:
            raise self.failure()

    def failure(self) -> DemoError:
        """What to raise when it has ended and should not have."""
        return DemoError(f"{self.name} ended with exit code {self._process.returncode}", log=self.log)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait()


class Processes:
    """Starts processes, and kills what still runs at the end of the block, children included."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = {**environment, _MARK: str(logs)}
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str | Path], *, cwd: Path | None = None) -> Child:
        """Start a process; what it prints goes into its log."""
        log = self._logs / f"{name.replace(' ', '-')}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                env=self._environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Out of reach of a Ctrl-C in the terminal: the demo ends them itself.
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def wait_until(
        self, is_done: Callable[[], bool], *, goal: str, timeout_s: float, needed: Sequence[Child] = ()
    ) -> None:
        """Wait until it is done, as long as the needed processes run.

        Raises:
            DemoError: one of them ended, or it took too long.
        """
        deadline = time.monotonic() + timeout_s
        while not is_done():
            for child in needed:
                if not child.is_running:
                    raise child.failure()
            if time.monotonic() > deadline:
                raise DemoError(f"{goal}: not in {timeout_s:g} s", log=needed[0].log if needed else None)
            time.sleep(_POLL_S)

    def left(self) -> list[psutil.Process]:
        """Those that still run, with the children of those that ended."""
        sessions = {child.pid for child in self._children}
        return [process for process in psutil.process_iter() if self._is_ours(process, sessions)]

    def stop(self) -> None:
        """Kill all: their data is the demo's own and is not needed any more."""
        for _ in range(20):
            left = self.left()
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(left, timeout=5)
            if not left:
                break
        for child in self._children:
            child.kill()

    def _is_ours(self, process: psutil.Process, sessions: set[int]) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            # A process title may overwrite the environment that others see; sessions stay.
            if os.getsid(process.pid) in sessions:
                return True
            return bool(process.environ().get(_MARK) == str(self._logs))
        except (psutil.Error, ProcessLookupError, PermissionError):
            return False


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([f"--- the end of {log}", *lines[-_TAIL_LINES:]])
