"""What a task does, the same for each system: one row in SQLite, or nothing but counting."""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from pathlib import Path

REDIS_URL = os.environ.get("PEERS_REDIS_URL", "redis://127.0.0.1:6379/0")
#: A time in the file of times.
MOMENT = struct.Struct("d")

_DATABASE = os.environ.get("PEERS_DATABASE", "")
_TIMES = os.environ.get("PEERS_TIMES", "")


def do(number: int) -> None:
    """Work of 20 ms around a commit; if only speed is wanted, note the time, from whichever process."""
    if _TIMES:
        with Path(_TIMES).open("ab", buffering=0) as file:
            file.write(MOMENT.pack(time.monotonic()))
        return
    time.sleep(0.01)
    with sqlite3.connect(_DATABASE, timeout=30) as connection:
        connection.execute("INSERT INTO effects VALUES (?)", (number,))
    connection.close()
    time.sleep(0.01)
