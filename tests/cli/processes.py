"""The command line tool as a process in a session of its own, ended with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.eventually import HANG_S

COMMAND = (sys.executable, "-m", "conquiet.cli")


@contextmanager
def running(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
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
