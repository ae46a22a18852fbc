"""Errors that no retry can mend: the task fails at once and says what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowNotFoundException

from conquiet.mq import PartitionBusyError, TopicError

_MISTAKES = (TypeError, ValueError, ImportError, TopicError, AirflowNotFoundException)


@contextmanager
def refused_at_once() -> Iterator[None]:
    """Turn what a wrong argument, connection, topic or handler name raises into the end of the task.

    Not for code that runs the user's handler: its errors belong to its message.
    """
    try:
        yield
    except PartitionBusyError:
        # It passes.
        raise
    except _MISTAKES as error:
        raise AirflowFailException(f"{error} (a retry would fail in the same way)") from error


def whole_number(name: str, value: object) -> int:
    """A templated argument is text when it arrives."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    try:
        return int(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from error


def seconds(name: str, value: object) -> float:
    """As `whole_number`, for a time."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    try:
        return float(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a number of seconds, got {value!r}") from error


def truth(name: str, value: object) -> bool:
    """As `whole_number`, for true or false."""
    found = {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())
    if found is None:
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return found
