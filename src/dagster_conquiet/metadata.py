"""Reports as Dagster metadata: counts, ids and times; never a payload, which would stay in the event log."""

from __future__ import annotations

from typing import Any

import dagster as dg

from conquiet.consume import DrainReport
from conquiet.mq import PartitionDrainReport
from conquiet.queue import BacklogStats
from dagster_conquiet.timeline import Timeline

Metadata = dict[str, dg.MetadataValue[Any]]

_COUNTS = ("read", "handled", "skipped", "failed", "quarantined", "handed_back", "taken_over")
_PARTITION_COUNTS = ("handled", "skipped", "retried", "dead_lettered", "handed_back")


def drain_metadata(report: DrainReport, after: BacklogStats, timeline: Timeline) -> Metadata:
    """What a drain did, and what it left."""
    return _counts(report, _COUNTS) | _of_drain(report, after, timeline)


def partition_metadata(report: PartitionDrainReport, after: BacklogStats, timeline: Timeline) -> Metadata:
    """What a drain of one partition did, and what it left."""
    return _counts(report, _PARTITION_COUNTS) | _of_drain(report, after, timeline)


def backlog_metadata(stats: BacklogStats) -> Metadata:
    """A look at a stream."""
    return {
        "lag": lag_value(stats.lag),
        "pending": dg.MetadataValue.int(stats.pending),
        "length": dg.MetadataValue.int(stats.length),
        "consumers": dg.MetadataValue.int(len(stats.consumers)),
        **_age("oldest_undelivered_s", stats.oldest_undelivered_age_ms),
        **_age("oldest_pending_s", stats.oldest_pending_age_ms),
    }


def id_range(first_id: str | None, last_id: str | None) -> Metadata:
    """The first and the last entry id; nothing if there was none."""
    ids = {"first_id": first_id, "last_id": last_id}
    return {name: dg.MetadataValue.text(entry_id) for name, entry_id in ids.items() if entry_id}


def lag_value(lag: int | None) -> dg.MetadataValue[Any]:
    """A number, or the word for a lag that neither the server nor a bounded count knows."""
    return dg.MetadataValue.text("unknown") if lag is None else dg.MetadataValue.int(lag)


def _counts(report: object, names: tuple[str, ...]) -> Metadata:
    return {name: dg.MetadataValue.int(getattr(report, name)) for name in names}


def _of_drain(
    report: DrainReport | PartitionDrainReport, after: BacklogStats, timeline: Timeline
) -> Metadata:
    picture = timeline.markdown()
    return {
        "dagster/row_count": dg.MetadataValue.int(report.handled),
        **id_range(report.first_id, report.last_id),
        "remaining_lag": lag_value(after.lag),
        "pending": dg.MetadataValue.int(after.pending),
        "seconds": dg.MetadataValue.float(round(report.seconds, 3)),
        "stopped_by": dg.MetadataValue.text(report.stopped_by),
        **({"messages_over_time": dg.MetadataValue.md(picture)} if picture else {}),
    }


def _age(name: str, age_ms: int | None) -> Metadata:
    return {} if age_ms is None else {name: dg.MetadataValue.float(age_ms / 1000)}
