"""Arguments of tasks: templates make text of them, and a wrong one fails the task at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from airflow_provider_conquiet.airflow_names import AirflowFailException, AirflowNotFoundException
from conquiet.mq import PartitionBusyError, TopicError

_MISTAKES = (TypeError, ValueError, ImportError, TopicError, AirflowNotFoundException)

N = TypeVar("N", int, float)


@contextmanager
def failing_at_once(*mistakes: type[Exception]) -> Iterator[None]:
    """Fail the task without retries if an argument, connection, topic or handler name is wrong.

    Errors of messages pass: a drain puts its report on what ends it after it has begun.

    Args:
        mistakes: further errors that a retry would meet again.
    """
    try:
        yield
    except PartitionBusyError:
        # It passes with time, unlike other errors of topics.
        raise
    except Exception as error:
        if not isinstance(error, (*_MISTAKES, *mistakes)) or hasattr(error, "drain_report"):
            raise
        raise AirflowFailException(f"{error} (a retry would fail in the same way)") from error


def number(name: str, value: object, kind: type[N]) -> N:
    """The number that an argument is, or that its template was rendered to."""
    words = f"{name} must be a {'whole ' if kind is int else ''}number, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, kind | int | str):
        raise TypeError(words)
    try:
        return kind(value)
    except ValueError as error:
        raise ValueError(words) from error


def optional_number(name: str, value: object, kind: type[N]) -> N | None:
    """As `number`; `None` stays `None`, also as the text that a template makes of it."""
    return None if value in (None, "", "None") else number(name, value, kind)


def is_rendered_later(*values: object) -> bool:
    """Whether one of these is decided by the run: a template, or the output of another task."""
    return any(isinstance(value, str) or hasattr(value, "iter_references") for value in values)


def truth(name: str, value: object) -> bool:
    """As `number`, for true or false."""
    word = str(value).strip().lower()
    if word not in ("true", "1", "yes", "false", "0", "no"):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return word in ("true", "1", "yes")


def stream_or_topic(stream: str | None, topic: str | None) -> tuple[str, str]:
    """Which of the two was given, as ("stream" | "topic", its name)."""
    if (stream is None) == (topic is None):
        raise ValueError(f"give either a stream or a topic, got stream={stream!r} and topic={topic!r}")
    return ("stream", stream) if stream is not None else ("topic", str(topic))
