"""Ends processes with everything that they have started; needs nothing but the standard library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

#: In the environment of everything that is started: a process that left its session is found by it. It is no
#: setting, whose names begin with CONQUIET_.
MARK = "DEV_RUN_OF_CONQUIET"

_LOOK_EVERY_S = 0.05
#: After SIGKILL; what is left then cannot be killed.
_KILL_S = 10.0


def end_all(mark: str, sessions: Collection[int], *, grace_s: float) -> list[int]:
    """Ask each session's first process to end, then what it left, then kill; what is left all the same."""
    # Not all at once: a worker that gets the signal from its parent too takes it for the second one. As by
    # Ctrl-C at first: `airflow standalone` and `dagster dev` end their components only then.
    for is_first, number in ((True, signal.SIGINT), (False, signal.SIGTERM)):
        for pid in _living(mark, sessions, is_first=is_first):
            _send(pid, number)
        ends_at = time.monotonic() + (grace_s if is_first else grace_s / 2)
        while _living(mark, sessions, is_first=is_first) and time.monotonic() < ends_at:
            time.sleep(_LOOK_EVERY_S)
    ends_at = time.monotonic() + _KILL_S
    # Again and again: a process may start another one before it dies.
    while (left := _living(mark, sessions)) and time.monotonic() < ends_at:
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)
    return left


def _living(mark: str, sessions: Collection[int], *, is_first: bool = False) -> list[int]:
    candidates = sessions if is_first else _pids()
    return [pid for pid in candidates if pid != os.getpid() and _is_ours(pid, mark, sessions)]


def _pids() -> list[int]:
    if Path("/proc/self").exists():
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    listed = subprocess.run(["/bin/ps", "-axo", "pid="], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def _is_ours(pid: int, mark: str, sessions: Collection[int]) -> bool:
    try:
        if _is_zombie(pid):
            return False
        if os.getsid(pid) in sessions:
            return True
        # A process title may overwrite the environment that others see; sessions stay.
        environment = Path(f"/proc/{pid}/environ")
        return f"{MARK}={mark}\0".encode() in environment.read_bytes()
    except OSError:
        return False


def _is_zombie(pid: int) -> bool:
    try:
        # "4711 (a name) Z …"
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def main() -> None:
    """Read sessions, one a line, until the process that started this one has died; then end them all."""
    mark, sessions = sys.argv[1], set[int]()
    for line in sys.stdin:
        sessions.add(int(line))
    end_all(mark, sessions, grace_s=0)


if __name__ == "__main__":
    main()
