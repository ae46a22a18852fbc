"""The script that runs the server processes and ends them when its parent process has ended.

It gets its order as JSON in its one argument, answers one JSON line (`pids`, or the `problem`) and then
waits for `stop` or `kill` on stdin. A process of its own because Linux ties a child's death signal to the
thread that started it: this one has a single thread, which ends last.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

STOP = b"stop"
KILL = b"kill"

#: The exit status if a server did not end on SIGTERM in time.
EXIT_FORCED = 3

_EXIT_REFUSED = 4
_PARENT_GONE = b""
_PARENT_POLL_S = 0.25
_POLL_S = 0.005
_PR_SET_PDEATHSIG = 1

Server = subprocess.Popen[bytes]


def main(order: dict[str, Any]) -> int:
    """Run one order from the lock to the end of the last server; returns the exit status."""
    # A thread of the parent may have blocked signals, and masks survive fork and exec.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # SIGCHLD and SIGTERM become readable bytes, so that one select() waits for everything.
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        lock = _take_lock(order["lock"], order["parent_pid"], order["lock_timeout_s"])
        servers = _start_servers(order["commands"], log=order["log"], lock=lock)
    except OSError as error:
        _answer(problem=str(error))
        return _EXIT_REFUSED
    _answer(pids=[server.pid for server in servers])
    command = _watch(servers, parent_pid=order["parent_pid"], signals=signals)
    is_clean = _end(servers, stop_timeout_s=0 if command == KILL else order["stop_timeout_s"])
    if command == _PARENT_GONE and order["temporary_dir"]:
        shutil.rmtree(order["temporary_dir"], ignore_errors=True)
    return 0 if is_clean or command == KILL else EXIT_FORCED


def _take_lock(path: str, parent_pid: int, timeout_s: float) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.read(lock, 20).decode()
                raise OSError(
                    f"{os.path.dirname(path)} is already in use by the server of process {holder}"
                ) from None
            time.sleep(_POLL_S)
        else:
            os.ftruncate(lock, 0)
            os.write(lock, str(parent_pid).encode())
            return lock


def _start_servers(commands: Sequence[Sequence[str]], *, log: str, lock: int) -> list[Server]:
    servers: list[Server] = []
    before_exec = _death_with_supervisor()
    with open(log, "ab") as output:
        for command in commands:
            try:
                server = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # A lock belongs to the open file: it is released when the last server has ended.
                    pass_fds=(lock,),
                    # A group per server: a kill also reaches the child that rewrites the append-only file.
                    start_new_session=True,
                    preexec_fn=before_exec,
                )
            except OSError:
                _end(servers, stop_timeout_s=0)
                raise
            servers.append(server)
    return servers


def _death_with_supervisor() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    supervisor_pid = os.getpid()

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor_pid:
            os._exit(1)

    return before_exec


def _answer(**facts: object) -> None:
    # If the parent has died, the next step finds out.
    with suppress(BrokenPipeError):
        print(json.dumps(facts), flush=True)


def _watch(servers: Sequence[Server], *, parent_pid: int, signals: int) -> bytes:
    while [server for server in servers if server.poll() is None]:
        # A child that the parent forked keeps stdin open after the parent has ended.
        if os.getppid() != parent_pid:
            return _PARENT_GONE
        readable, _, _ = select.select([sys.stdin, signals], [], [], _PARENT_POLL_S)
        if sys.stdin in readable:
            return os.read(sys.stdin.fileno(), 64).strip()
        if signals in readable and signal.SIGTERM in os.read(signals, 512):
            return STOP
    return STOP


def _end(servers: Sequence[Server], *, stop_timeout_s: float) -> bool:
    deadline = time.monotonic() + stop_timeout_s
    if stop_timeout_s:
        for server in servers:
            server.terminate()
    forced = [server for server in servers if not has_ended(server, deadline)]
    for server in forced:
        os.killpg(server.pid, signal.SIGKILL)
    for server in forced:
        server.wait()
    return not forced


def has_ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for the end of a process up to a deadline, which may be in the past."""
    # wait(timeout) polls only every 50 ms: too slow for a test that stops its server.
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
