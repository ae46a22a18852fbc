"""What a task returns: counts and ids for XCom and asset events, never a payload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from conquiet import BacklogStats, DrainReport
from conquiet.queue.scripts import Added

if TYPE_CHECKING:
    from airflow.sdk import Context

Report = dict[str, Any]

#: How many ids or names a report has at most.
MAX_SAMPLES = 5


def enqueue_report(destination: Mapping[str, str], messages: Sequence[Added]) -> Report:
    """How many messages are there, and how many of them are new; `ids` are a few of the first."""
    ids, added = [message.entry_id for message in messages], sum(message.is_new for message in messages)
    return {
        **destination,
        "enqueued": len(ids),
        "added": added,
        "already_there": len(ids) - added,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "ids": list(ids[:MAX_SAMPLES]),
    }


def drain_report(report: DrainReport, *, consumer: str, backlog: BacklogStats) -> Report:
    """What a drain did and what it left; error texts stay in the log, since they may quote a payload."""
    values = report.to_dict()
    del values["failures"]
    by_error = Counter(type(failure.error).__name__ for failure in report.failures)
    return {
        **values,
        "per_second": round(report.read / report.seconds, 1) if report.seconds else 0.0,
        "failures_by_error": dict(by_error.most_common(MAX_SAMPLES)),
        "failed_ids": [failure.id for failure in report.failures[:MAX_SAMPLES]],
        "consumer": consumer,
        "remaining_lag": backlog.lag,
        "remaining_pending": backlog.pending,
    }


def update_outlets(
    context: Context, outlets: Sequence[object], uri: str, report: Report, *, partition: str | None = None
) -> None:
    """Put counts and the last id on the events of the task's outlets; an alias gets the stream itself.

    Args:
        partition: the events are of this partition of the asset (Airflow 3.3 and later).
    """
    extra: Report = {
        name: value for name, value in report.items() if isinstance(value, int | float | str | dict)
    }
    for outlet in outlets:
        if isinstance(outlet, Asset):
            event = context["outlet_events"][outlet]
            event.extra.update(extra)
            if partition is not None:
                event.add_partitions(partition)
        elif isinstance(outlet, AssetAlias):
            context["outlet_events"][outlet].add(Asset(uri=uri), extra=extra)
