"""Reports as Dagster metadata: counts, ids and times; never a payload, which would stay in the event log."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import dagster as dg

from conquiet.consume import DrainReport
from conquiet.queue import BacklogStats
from conquiet.settings import Settings
from dagster_conquiet.described import names_of
from dagster_conquiet.specs import AnySpec
from dagster_conquiet.steps.failures import failure_table
from dagster_conquiet.steps.timeline import Timeline

Metadata = dict[str, dg.MetadataValue[Any]]


def drain_metadata(report: DrainReport, after: BacklogStats | None, timeline: Timeline) -> Metadata:
    """What a drain of a stream or of a partition did, and what it left, unless the server did not say."""
    picture = timeline.markdown()
    left: Metadata = {}
    if after is not None:
        left = {"remaining_lag": lag_value(after.lag), "pending": dg.MetadataValue.int(after.pending)}
    return {
        **{name: dg.MetadataValue.int(count) for name, count in report.counts.items()},
        "dagster/row_count": dg.MetadataValue.int(report.handled),
        **id_range(report.first_id, report.last_id),
        **left,
        "pending_elsewhere": dg.MetadataValue.int(report.pending_elsewhere),
        "elsewhere_idle_s": dg.MetadataValue.float(report.elsewhere_idle_ms / 1000),
        "seconds": dg.MetadataValue.float(round(report.seconds, 3)),
        "messages_per_second": dg.MetadataValue.float(round(report.read / max(report.seconds, 0.001), 3)),
        **failure_table(report.failures),
        "stopped_by": dg.MetadataValue.text(report.stopped_by),
        **({"messages_over_time": dg.MetadataValue.md(picture)} if picture else {}),
    }


def backlog_metadata(stats: BacklogStats) -> Metadata:
    """The state of a stream and its group."""
    ages = {
        "oldest_undelivered_s": stats.oldest_undelivered_age_ms,
        "oldest_pending_s": stats.oldest_pending_age_ms,
    }
    return {
        "lag": lag_value(stats.lag),
        "pending": dg.MetadataValue.int(stats.pending),
        "length": dg.MetadataValue.int(stats.length),
        "dagster/row_count": dg.MetadataValue.int(stats.length),
        "consumers": dg.MetadataValue.int(len(stats.consumers)),
        **{name: dg.MetadataValue.float(age / 1000) for name, age in ages.items() if age is not None},
    }


def source_metadata(stats: BacklogStats, group: str | None) -> Metadata:
    """What an observation of a stream, or of a partition, has; without a group, how long the stream is."""
    metadata: Metadata = {
        "last_id": dg.MetadataValue.text(stats.last_id),
        "dagster/row_count": dg.MetadataValue.int(stats.length),
    }
    if group is None:
        return metadata
    return {"group": dg.MetadataValue.text(group)} | metadata | backlog_metadata(stats)


def definition_metadata(spec: AnySpec) -> dict[str, Any]:
    """What a definition has of its stream or topic: the names, and where the page shows it."""
    return names_of(spec) | page_link(spec.source)


def page_link(name: str) -> Metadata:
    """Where the page shows a stream or topic; nothing unless CONQUIET_PAGE_URL says where the page is."""
    return _link_to("topic", name=name)


def task_link(queue: str, task_id: str) -> Metadata:
    """The same of a task."""
    return _link_to("task", queue=queue, id=task_id)


def _link_to(view: str, **query: str) -> Metadata:
    url = Settings.from_environment().page_url
    if url is None:
        return {}
    return {"page": dg.MetadataValue.url(f"{url.rstrip('/')}/{view}?{urlencode(query)}")}


def id_range(first_id: str | None, last_id: str | None) -> Metadata:
    """The first and the last entry id; nothing if there was none."""
    ids = {"first_id": first_id, "last_id": last_id}
    return {name: dg.MetadataValue.text(entry_id) for name, entry_id in ids.items() if entry_id}


def lag_value(lag: int | None) -> dg.MetadataValue[Any]:
    """A number, or "unknown" where neither the server nor a bounded count can give one."""
    return dg.MetadataValue.text("unknown") if lag is None else dg.MetadataValue.int(lag)
