"""Values as they are typed: names, durations, times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from conquiet.operations import values
from conquiet.operations.values import shown_age, shown_lag, shown_time

__all__ = [
    "AllNames",
    "Name",
    "Names",
    "Namespace",
    "duration_option",
    "parse_duration",
    "parse_position",
    "parse_time",
    "shown_age",
    "shown_lag",
    "shown_time",
]

_T = TypeVar("_T")

Name = Annotated[str, typer.Argument(help="A topic, or the key of a plain stream.", metavar="NAME")]
Names = Annotated[
    list[str] | None,
    typer.Argument(help="Topics or plain streams; without any, every topic.", metavar="[NAME]..."),
]

#: Also queues of tasks.
AllNames = Annotated[
    list[str] | None,
    typer.Argument(
        help="Topics, plain streams or queues of tasks; without any, every topic and queue.",
        metavar="[NAME]...",
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", help="What the keys of queues of tasks begin with.", metavar="NAME")
]


def parse_duration(text: str) -> int:
    """Milliseconds of "500ms", "30s", "5m", "2h" or "7d"."""
    return _typed(values.parse_duration, text)


def duration_option(name: str, text: str) -> Any:
    """An option that is typed as a duration, and becomes milliseconds."""
    return typer.Option(name, help=text, metavar="DURATION", parser=parse_duration)


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO time, or of such a number."""
    return _typed(values.parse_time, text)


def parse_position(text: str) -> str | int:
    """A position in a stream: start, end, an entry id, or a time."""
    return _typed(values.parse_position, text)


def _typed(parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
