"""Durations and times, as people write them and as they are shown."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str) -> int:
    """Milliseconds of "500ms", "30s", "5m", "2h" or "7d".

    Raises:
        ValueError: it is none of these.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 500ms, 30s, 5m, 2h or 7d")
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO time, in UTC unless it says otherwise, or of such a number.

    Raises:
        ValueError: it is neither.
    """
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write 2026-08-22T10:00, or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def parse_position(text: str) -> str | int:
    """A position in a stream: start, end, an entry id, or a time.

    Raises:
        ValueError: it is none of these.
    """
    return text if text in ("start", "end", "$") or re.fullmatch(r"\d+-\d+", text) else parse_time(text)


def shown_time(milliseconds: int | None) -> str:
    """A time for people, in UTC."""
    if milliseconds is None:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OSError, OverflowError, ValueError):
        # Other programs write times, too.
        return f"{milliseconds:.3g} ms"


def shown_age(milliseconds: int | None) -> str:
    """An age in its two largest units."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1_000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1_000
    for size, unit, smaller, small_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // smaller} {small_unit}"
    return f"{seconds} s"


def shown_lag(lag: int | None) -> str:
    """A lag; an unknown one is not a zero."""
    return "unknown" if lag is None else f"{lag:,}"
