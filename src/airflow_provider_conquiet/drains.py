"""A drain inside a task: what it is told, and which of its ends are the task's failure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from conquiet import DbError, DrainError, DrainReport, Inbox
from conquiet.db import is_connection_lost
from conquiet.logs import MessageLog

_log = MessageLog(logging.getLogger(__name__))

OnError = Literal["raise", "continue"]
ShouldStop = Callable[[], bool]
#: Drains until it is told to stop; the function that tells it is its argument.
Drain = Callable[[ShouldStop], DrainReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSettings:
    """The arguments that `drain` and `drain_stale` share; they check them."""

    max_messages: int
    max_duration_s: float | None
    on_error: OnError
    max_failures: int | None
    max_deliveries: int | None
    quarantine_to: str | None
    inbox: Inbox | None
    batch_size: int

    def as_arguments(self) -> dict[str, Any]:
        """As keyword arguments."""
        return {name: getattr(self, name) for name in self.__slots__}


def run_drain(drain: Drain, *, should_stop: ShouldStop, max_failures: int | None) -> DrainReport:
    """Drain, and keep the two retry layers apart.

    Failed messages below `max_failures` are no failure of the task: they stay pending, and come again by
    their own rules.

    Raises:
        AirflowFailException: so many messages failed that the handler must be broken, or an argument is
            wrong; Airflow's retries would change nothing.
        DbError, QueueError: the database or Redis went away; Airflow's retries are for this.
        AirflowException: the task was told to stop before it was done.
    """
    try:
        report = drain(should_stop)
    except DrainError as error:
        if any(is_connection_lost(failure.error) for failure in error.failures):
            raise DbError(f"the database broke a connection while messages were handled: {error}") from error
        report = _tolerated(error, max_failures)
    except (TypeError, ValueError) as error:
        # The loop puts its report on what leaves it; without one, nothing was begun.
        if hasattr(error, "drain_report"):
            raise
        raise AirflowFailException(f"{error} (a retry would fail in the same way)") from error
    if report.stopped_by == "stop":
        raise AirflowException(f"told to stop before the drain was done: {report.to_json()}")
    return report


def _tolerated(error: DrainError, max_failures: int | None) -> DrainReport:
    report: DrainReport = error.report
    if max_failures is not None and len(error.failures) >= max_failures:
        raise AirflowFailException(
            f"{error}. With max_failures={max_failures} this is the handler's fault and not its messages'; "
            "mend it, then clear this task"
        ) from error
    _log.warning("%s; the task goes on, they will be delivered again", error)
    return report
