"""What a task does, the same for each system: one row in SQLite, or nothing but counting."""

from __future__ import annotations

import os
import sqlite3
import time
from itertools import count
from pathlib import Path

REDIS_URL = os.environ.get("PEERS_REDIS_URL", "redis://127.0.0.1:6379/0")
_DATABASE = os.environ.get("PEERS_DATABASE", "")
_TIMES = os.environ.get("PEERS_TIMES", "")
_TOTAL = int(os.environ.get("PEERS_TOTAL", "0"))

_calls = count(1)


def do(number: int) -> None:
    """Work of 20 ms around a commit; if only speed is wanted, note when the first and the last one ran."""
    if _TIMES:
        call = next(_calls)
        if call in (1, _TOTAL):
            with Path(_TIMES).open("a") as file:
                file.write(f"{time.monotonic()}\n")
        return
    time.sleep(0.01)
    with sqlite3.connect(_DATABASE, timeout=30) as connection:
        connection.execute("INSERT INTO effects VALUES (?)", (number,))
    connection.close()
    time.sleep(0.01)
