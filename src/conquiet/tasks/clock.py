"""The clock of tasks: the server's in scripts, this machine's elsewhere; `conquiet.testing` can set both."""

from __future__ import annotations

import time
from datetime import UTC, datetime

_set_ms: int | None = None


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000 if _set_ms is None else _set_ms


def now() -> datetime:
    """In UTC."""
    return datetime.now(UTC) if _set_ms is None else datetime.fromtimestamp(_set_ms / 1000, UTC)


def for_scripts() -> str:
    """The time for scripts: empty, so that they ask their server, unless it is set."""
    return "" if _set_ms is None else str(_set_ms)


def set_clock(ms: int | None) -> None:
    """Have it stand still at this time, in the whole process; `None` lets it go again."""
    global _set_ms
    _set_ms = ms
