"""What a task does, the same for each system: one row in SQLite, or nothing but counting."""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from functools import cache

REDIS_URL = os.environ.get("PEERS_REDIS_URL", "redis://127.0.0.1:6379/0")
#: A time in the file of times.
MOMENT = struct.Struct("d")

#: Whether results are kept, where a system can do without.
HAS_RESULTS = os.environ.get("PEERS_RESULTS") == "1"

#: How many tasks a worker runs at once, for systems that are told in their code; without, their default.
CONCURRENCY = int(os.environ.get("PEERS_CONCURRENCY", "0")) or None

_DATABASE = os.environ.get("PEERS_DATABASE", "")
_TIMES = os.environ.get("PEERS_TIMES", "")


@cache
def _times_file(_process: int) -> int:
    """Opened once by each process: to open it takes longer than a task of a quick system."""
    return os.open(_TIMES, os.O_CREAT | os.O_APPEND | os.O_WRONLY)


def do(number: int) -> None:
    """Work of 20 ms around a commit; if only speed is wanted, note the time, from whichever process."""
    if _TIMES:
        os.write(_times_file(os.getpid()), MOMENT.pack(time.monotonic()))
        return
    time.sleep(0.01)
    with sqlite3.connect(_DATABASE, timeout=30) as connection:
        connection.execute("INSERT INTO effects VALUES (?)", (number,))
    connection.close()
    time.sleep(0.01)
