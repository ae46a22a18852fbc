"""Values as they are typed: durations, times, headers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

import typer

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str) -> int:
    """Milliseconds of "500ms", "30s", "5m", "2h" or "7d"."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 30s, 5m, 2h or 7d")
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO time, or of such a number."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write 2026-08-22T10:00, or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def parse_place(text: str) -> str | int:
    """Where a group goes on: "start", "end", an entry id, or a time."""
    is_place = text in ("start", "end") or re.fullmatch(r"\d+-\d+", text)
    return text if is_place else parse_time(text)


def parse_header(text: str) -> tuple[str, str]:
    """Name and value of "name=value"."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise typer.BadParameter(f"{text!r} is no header; write name=value")
    return name, value


def shown_time(milliseconds: int | None) -> str:
    """A time for people, in UTC."""
    if milliseconds is None:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


Name = Annotated[str, typer.Argument(help="A topic, or the key of a plain stream.", metavar="NAME")]
