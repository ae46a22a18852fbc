"""What a task leaves behind: counts and ids for XCom and asset events, never a payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from conquiet import BacklogStats, DrainReport
from conquiet.mq import PartitionDrainReport

if TYPE_CHECKING:
    from airflow.sdk import Context

Report = dict[str, Any]

_SAMPLES = 5


def enqueue_report(place: Mapping[str, str], ids: Sequence[str]) -> Report:
    """How many messages were enqueued, and where; `ids` are a few of the first."""
    return {
        **place,
        "enqueued": len(ids),
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "ids": list(ids[:_SAMPLES]),
    }


def drain_report(report: DrainReport, *, consumer: str, backlog: BacklogStats) -> Report:
    """What a drain did and what it left; error texts stay in the log, since they may quote a payload."""
    values = report.to_dict()
    del values["failures"]
    return {
        **values,
        "failed_ids": [failure.id for failure in report.failures[:_SAMPLES]],
        "consumer": consumer,
        "remaining_lag": backlog.lag,
        "remaining_pending": backlog.pending,
    }


def partition_report(report: PartitionDrainReport, *, consumer: str, backlog: BacklogStats) -> Report:
    """As `drain_report`, for a partition; `read` is what was begun, `failed` what will be tried again."""
    values = report.to_dict()
    return {
        **values,
        "read": sum(values[name] for name in ("handled", "retried", "dead_lettered")),
        "failed": report.retried,
        "consumer": consumer,
        "remaining_lag": backlog.lag,
        "remaining_pending": backlog.pending,
    }


def tell_assets(context: Context, outlets: Sequence[object], uri: str, report: Report) -> None:
    """Put counts and the last id on the events of the task's outlets; an alias gets the stream itself."""
    extra: Report = {name: value for name, value in report.items() if isinstance(value, int | str)}
    for outlet in outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(extra)
        elif isinstance(outlet, AssetAlias):
            context["outlet_events"][outlet].add(Asset(uri=uri), extra=extra)
