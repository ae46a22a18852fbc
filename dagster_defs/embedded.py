"""The private server of a laptop: one for all of Dagster's processes, started by the first that needs it.

Dagster's steps are short-lived processes, and an `EmbeddedServer` ends with the process that started it. So a
separate process runs the server until there was no connection for five minutes; its data stays on disk.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import redis
from redis.exceptions import RedisError

from conquiet import EmbeddedServer

DIRECTORY = Path(os.environ.get("CONQUIET_DIRECTORY", ".dagster_conquiet")).absolute()
SQLITE_URL = f"sqlite:///{DIRECTORY}/orders.db"

_IDLE_S = 300.0
_START_S = 30.0


def embedded_url(directory: Path) -> str:
    """The URL of the private server that keeps its data in this directory; starts it unless it runs."""
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        url = _running_url(directory)
        if url is None:
            command = [sys.executable, "-m", "dagster_defs.embedded", str(directory)]
            # In this process group: Ctrl-C in `dagster dev` reaches it too.
            with (directory / "keeper.log").open("ab") as log:
                subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=log, stderr=log)
            url = _wait_for_url(directory)
    return url


def keep(directory: Path) -> None:
    """Run the server until a signal stops it, or until there was no connection for five minutes."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    with EmbeddedServer(dir=directory / "server", appendonly=True) as server:
        (directory / "url.new").write_text(server.url)
        (directory / "url.new").rename(directory / "url")
        with redis.Redis.from_url(server.url) as client:
            _wait_while_used(client)
        with _locked(directory):
            (directory / "url").unlink()
            server.stop()


def _wait_while_used(client: redis.Redis) -> None:
    seen, used_at = None, time.monotonic()
    while time.monotonic() - used_at < _IDLE_S:
        stats = client.info()
        others = stats["connected_clients"] - 1, stats["total_connections_received"]
        if others[0] or others != seen:
            seen, used_at = others, time.monotonic()
        time.sleep(1)


def _running_url(directory: Path) -> str | None:
    try:
        url = (directory / "url").read_text()
        with redis.Redis.from_url(url) as client:
            client.ping()
    except (FileNotFoundError, RedisError):
        return None
    return url


def _wait_for_url(directory: Path) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        url = _running_url(directory)
        if url is not None:
            return url
        time.sleep(0.05)
    raise TimeoutError(f"the private server did not start in {_START_S:g} s; see {directory}/keeper.log")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(f"stopped by {signal.Signals(number).name}")


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
