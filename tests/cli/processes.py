"""The command line tool as a process in a session of its own, ended with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO

from tests.eventually import HANG_S

COMMAND = (sys.executable, "-m", "conquiet.cli")


def running(*arguments: object, **environment: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(arguments, environment, subprocess.PIPE)


@contextmanager
def started(
    arguments: Sequence[object], environment: Mapping[str, str], stderr: IO[str] | int
) -> Iterator[subprocess.Popen[str]]:
    """`stderr`: a file for what prints more than a pipe holds, which nobody reads before the end."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def ended(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    """Send a signal, and wait: exit code, stdout, stderr."""
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG_S)
    return process.returncode, out, err


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
