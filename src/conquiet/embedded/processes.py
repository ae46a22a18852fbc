"""The server processes of one start, as seen from the process that started them."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from conquiet.embedded import supervisor
from conquiet.errors import EmbeddedServerError

logger = logging.getLogger(__name__)

#: From SIGTERM to SIGKILL.
STOP_TIMEOUT_S = 10.0

#: The last owner of a directory may have died a moment ago, and its servers may still be ending.
LOCK_TIMEOUT_S = 1.0

#: A busy machine may take long to start a process; one that has died is noticed at once.
_ANSWER_TIMEOUT_S = 60.0
#: What the supervisor itself may take to end, after its servers.
_END_TIMEOUT_S = 10.0
_POLL_S = 0.005
_LOG_LINES = 20


class PortTakenError(EmbeddedServerError):
    """Another process took a port after it was chosen; a start on other ports can succeed."""


class ServerProcesses:
    """Alive from the constructor to `stop()` or `kill()`, or to the end of this process, however it ends."""

    def __init__(
        self, commands: Sequence[Sequence[str]], *, directory: Path, log: Path, is_temporary: bool
    ) -> None:
        order = {
            "parent_pid": os.getpid(),
            "commands": commands,
            "lock": str(directory / "server.lock"),
            "log": str(log),
            "lock_timeout_s": LOCK_TIMEOUT_S,
            "stop_timeout_s": STOP_TIMEOUT_S,
            "temporary_dir": str(directory) if is_temporary else None,
        }
        self._log = log
        with log.open("ab") as errors:
            # Earlier starts in the same directory appended to it, too.
            self._log_start = errors.tell()
            self._supervisor = subprocess.Popen(
                # -I and -S: neither PYTHONPATH nor site-packages can break or slow it.
                [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                cwd=directory,
                # A Ctrl-C in the terminal does not reach it: the parent cleans up first.
                start_new_session=True,
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
        return self.is_supervised and all(map(_exists, self.pids))

    def wait_until(self, is_done: Callable[[], bool], *, deadline: float, goal: str) -> None:
        """Poll until it is done, as long as every server runs.

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
        """The error to raise for a problem, with the end of the server's own log."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        kind = PortTakenError if "Address already in use" in text else EmbeddedServerError
        tail = "".join(f"\n    {line}" for line in text.strip().splitlines()[-_LOG_LINES:])
        return kind(problem, facts={"log": tail or "(empty)"})

    def stop(self) -> None:
        """Let every server end by itself, and kill those that do not; a second call does nothing."""
        if self._end(supervisor.STOP) == supervisor.EXIT_FORCED:
            logger.warning("a server did not end within %s s of SIGTERM and was killed", STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill every server at once, as a crash would."""
        self._end(supervisor.KILL)

    def _end(self, command: bytes) -> int:
        stdin, stdout = self._pipes()
        stdout.close()
        if not stdin.closed:
            with suppress(BrokenPipeError), stdin:
                stdin.write(command)
        deadline = time.monotonic() + STOP_TIMEOUT_S + _END_TIMEOUT_S
        if not supervisor.has_ended(self._supervisor, deadline):
            self._supervisor.kill()
        return self._supervisor.wait()

    def _started_pids(self) -> tuple[int, ...]:
        _, stdout = self._pipes()
        # poll, not select: a large process has file descriptors that select refuses.
        answer = select.poll()
        answer.register(stdout, select.POLLIN)
        if not answer.poll(_ANSWER_TIMEOUT_S * 1_000):
            raise self.failure(f"the supervisor of the server did not answer within {_ANSWER_TIMEOUT_S:g} s")
        line = stdout.readline()
        if not line:
            raise self.failure("the supervisor of the server ended without an answer")
        facts = json.loads(line)
        if "problem" in facts:
            raise self.failure(facts["problem"])
        return tuple(facts["pids"])

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        stdin, stdout = self._supervisor.stdin, self._supervisor.stdout
        if stdin is None or stdout is None:
            raise AssertionError("the supervisor was started with pipes")
        return stdin, stdout


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        # Another user's process under a pid that was ours is not ours either.
        return False
    return True
