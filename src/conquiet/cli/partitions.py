"""Drains the partitions of a topic one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from conquiet.cli.exits import ExitCode
from conquiet.cli.site import Site
from conquiet.errors import PartitionBusyError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.mq import PartitionDrainReport, Topic

#: The topic, the group, the partitions asked for, the consumer's name.
Place = tuple["Topic", str, list[int] | None, str | None]


def drain_partitions(
    site: Site, place: Place, handler: Callable[..., Any], engine: Engine | None, limits: dict[str, Any]
) -> int:
    """Drain each partition that nobody else owns; the limit of messages is over all of them."""
    from conquiet.mq import ConsumerConfig, drain_partition

    topic, group, asked, consumer = place
    config = ConsumerConfig(consumer_name=consumer) if consumer else None
    reports: list[PartitionDrainReport] = []
    busy: list[int] = []
    left: int = limits.pop("max_messages")
    for partition in asked or topic.partitions:
        if left <= 0 or limits["should_stop"]():
            break
        try:
            report = drain_partition(
                topic, partition, group, handler, engine, config=config, max_messages=left, **limits
            )
        except PartitionBusyError:
            busy.append(partition)
            continue
        reports.append(report)
        left -= report.handled + report.retried + report.dead_lettered
    _show(site, topic, group, reports, busy)
    if any(report.retried or report.dead_lettered for report in reports):
        return ExitCode.FAILED
    return ExitCode.NOT_THERE if busy and not reports else ExitCode.DONE


def _show(site: Site, topic: Topic, group: str, reports: list[PartitionDrainReport], busy: list[int]) -> None:
    names = ("handled", "skipped", "retried", "dead_lettered", "handed_back")
    sums = {name: sum(getattr(report, name) for report in reports) for name in names}
    document = {
        "kind": "topic",
        "topic": topic.name,
        "group": group,
        **sums,
        "busy": busy,
        "partitions": [report.to_dict() for report in reports],
    }

    def tell() -> None:
        columns = ("partition", *(f">{name.replace('_', ' ')}" for name in names), "stopped by")
        rows = [(one.partition, *(getattr(one, name) for name in names), one.stopped_by) for one in reports]
        site.output.table(columns, rows)
        if busy:
            site.output.say(f"In other hands: partition {', '.join(map(str, busy))}")

    site.output.show(document, tell)
