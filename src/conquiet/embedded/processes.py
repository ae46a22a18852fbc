"""The server processes of one start, as seen from the process that started them."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from conquiet.embedded import supervisor
from conquiet.embedded.log import ServerLog
from conquiet.errors import EmbeddedServerError

logger = logging.getLogger(__name__)

#: From SIGTERM to SIGKILL.
STOP_TIMEOUT_S = 10.0

#: The last owner of a directory may have died a moment ago and its servers be on their way out.
LOCK_TIMEOUT_S = 1.0

_SUPERVISOR_TIMEOUT_S = 10.0
_POLL_S = 0.005


class PortTakenError(EmbeddedServerError):
    """Somebody took a port after it was chosen; a start on other ports can succeed."""


class ServerProcesses:
    """Alive from the constructor to `stop()` or `kill()`, or to the end of this process, however it ends."""

    def __init__(
        self, commands: Sequence[Sequence[str]], *, directory: Path, log: ServerLog, is_temporary: bool
    ) -> None:
        self._log = log
        self._supervisor = _spawn_supervisor(
            {
                "parent_pid": os.getpid(),
                "commands": commands,
                "lock": str(directory / "server.lock"),
                "log": str(log.path),
                "lock_timeout_s": LOCK_TIMEOUT_S,
                "stop_timeout_s": STOP_TIMEOUT_S,
                "temporary_dir": str(directory) if is_temporary else None,
            },
            directory=directory,
            log=log,
        )
        try:
            self.pids = self._started_pids()
        except BaseException:
            self.kill()
            raise

    @property
    def is_supervised(self) -> bool:
        """Whether at least one server may still run."""
        return self._supervisor.poll() is None

    @property
    def is_running(self) -> bool:
        """Whether every server runs."""
        return self.is_supervised and all(map(_exists, self.pids))

    def wait_until(self, is_done: Callable[[], bool], *, deadline: float, goal: str) -> None:
        """Poll until it is done, for as long as every server lives.

        Raises:
            EmbeddedServerError: a server ended or the deadline passed; with the tail of the log.
        """
        while not is_done():
            if not self.is_running:
                raise self.failure("the server ended while it was started")
            if time.monotonic() > deadline:
                raise self.failure(f"the server did not {goal} in time")
            time.sleep(_POLL_S)

    def failure(self, problem: str) -> EmbeddedServerError:
        """The error to raise for a problem, with what the server itself says about it."""
        kind = PortTakenError if "Address already in use" in self._log.text() else EmbeddedServerError
        return kind(problem, facts={"log": self._log.tail()})

    def stop(self) -> None:
        """Let every server end by itself, and kill those that do not; a second call does nothing."""
        if self._end(supervisor.STOP) == supervisor.EXIT_FORCED:
            logger.warning("a server did not end within %s s of SIGTERM and was killed", STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill every server at once, as a crash would."""
        self._end(supervisor.KILL)

    def _end(self, command: bytes) -> int:
        stdin, stdout = _pipes_of(self._supervisor)
        stdout.close()
        if not stdin.closed:
            with suppress(BrokenPipeError), stdin:
                stdin.write(command)
        deadline = time.monotonic() + STOP_TIMEOUT_S + _SUPERVISOR_TIMEOUT_S
        if not supervisor.has_ended(self._supervisor, deadline):
            self._supervisor.kill()
        return self._supervisor.wait()

    def _started_pids(self) -> tuple[int, ...]:
        _, stdout = _pipes_of(self._supervisor)
        # poll, not select: a large process has file descriptors that select refuses.
        answer = select.poll()
        answer.register(stdout, select.POLLIN)
        line = stdout.readline() if answer.poll(_SUPERVISOR_TIMEOUT_S * 1_000) else b""
        facts = json.loads(line or b'{"problem": "the supervisor of the server did not answer"}')
        if "problem" in facts:
            raise self.failure(facts["problem"])
        return tuple(facts["pids"])


def _spawn_supervisor(
    order: Mapping[str, object], *, directory: Path, log: ServerLog
) -> subprocess.Popen[bytes]:
    with log.path.open("ab") as errors:
        return subprocess.Popen(
            # -I and -S: neither PYTHONPATH nor site-packages can break or slow it.
            [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            cwd=directory,
            # Out of reach of a Ctrl-C in the terminal: the parent cleans up first.
            start_new_session=True,
        )


def _pipes_of(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise AssertionError("the supervisor was started with pipes")
    return process.stdin, process.stdout


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        # Another user's process under a pid that was ours is not ours either.
        return False
    return True
