"""What a task does, the same for each system: one row and its commit, or nothing but counting."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import threading
import time
from functools import cache
from typing import Any

REDIS_URL = os.environ.get("PEERS_REDIS_URL", "redis://127.0.0.1:6379/0")
#: A time in the file of times.
MOMENT = struct.Struct("d")

#: Whether results are kept, where a system can do without.
HAS_RESULTS = os.environ.get("PEERS_RESULTS") == "1"

#: How many tasks a worker runs at once, for systems that are told in their code; without, their default.
CONCURRENCY = int(os.environ.get("PEERS_CONCURRENCY", "0")) or None

#: Where the rows go, as a URL; "" for nowhere. Queues inside PostgreSQL have their tables there, too.
DATABASE_URL = os.environ.get("PEERS_DATABASE", "")
INSERT = "INSERT INTO effects VALUES (%s)"
_TIMES = os.environ.get("PEERS_TIMES", "")
_SQLITE = "sqlite:///"

_of_thread = threading.local()


@cache
def _times_file(_process: int) -> int:
    """Opened once by each process: to open it takes longer than a task of a quick system."""
    return os.open(_TIMES, os.O_CREAT | os.O_APPEND | os.O_WRONLY)


def note_time() -> None:
    """Count a task, from whichever process."""
    os.write(_times_file(os.getpid()), MOMENT.pack(time.monotonic()))


def work() -> None:
    """Half of a task's own work, unless only speed is wanted."""
    if not _TIMES:
        time.sleep(0.01)


def done() -> None:
    """The end of a task, whose row may be written already."""
    if _TIMES:
        note_time()


def do(number: int) -> None:
    """Work of 20 ms around a commit; if only speed is wanted, the commit and the time alone."""
    work()
    if DATABASE_URL:
        connection, insert = _connection()
        connection.execute(insert, (number,))
        connection.commit()
    work()
    done()


async def do_on_loop(number: int) -> None:
    """As `do`, of a coroutine: one that waits for PostgreSQL must not hold up the others of its loop."""
    if DATABASE_URL.startswith("postgres"):
        await asyncio.to_thread(do, number)
    else:
        do(number)


def _connection() -> tuple[Any, str]:
    """One for each thread of each process, as an application's pool has them."""
    if getattr(_of_thread, "process", None) != os.getpid():
        _of_thread.process = os.getpid()
        if DATABASE_URL.startswith(_SQLITE):
            connection: Any = sqlite3.connect(DATABASE_URL.removeprefix(_SQLITE), timeout=30)
            connection.execute("PRAGMA synchronous = NORMAL")
            _of_thread.connection = connection, INSERT.replace("%s", "?")
        else:
            import psycopg

            _of_thread.connection = psycopg.connect(DATABASE_URL), INSERT
    found: tuple[Any, str] = _of_thread.connection
    return found
