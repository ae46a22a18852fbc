"""Pending entries: what a group was given and has not settled, merged over partitions, read-only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice
from typing import Any, Literal, Self

from conquiet.arguments import check_non_negative_int, check_positive_int
from conquiet.mq.positions import Position
from conquiet.mq.topics import Topic
from conquiet.queue.connection import as_text

PendingSort = Literal["id", "idle", "deliveries"]

#: Entries that are read to find the most idle or the most delivered ones: Redis has no index for that.
_MAX_SORTED = 10_000
_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEntry:
    """One message that was delivered and not settled."""

    partition: int
    id: str
    consumer: str
    #: Time since it was last delivered, or kept alive by its consumer.
    idle_ms: int
    deliveries: int

    @classmethod
    def of_row(cls, partition: int, row: Mapping[str, Any]) -> Self:
        """Of one row of XPENDING, as redis-py reads it."""
        return cls(
            partition=partition,
            id=row["message_id"].decode(),
            consumer=as_text(row["consumer"]),
            idle_ms=row["time_since_delivered"],
            deliveries=row["times_delivered"],
        )

    @property
    def position(self) -> Position:
        """Its place in the order of all partitions."""
        return Position.of(self.id.encode(), self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPage:
    """Some of the pending entries."""

    entries: tuple[PendingEntry, ...]
    #: For the next page, `None` at the end. By id it neither skips nor repeats; in the other orders a list
    #: that changes meanwhile moves under it.
    cursor: str | None
    #: Whether every pending entry was considered; sorting reads 10,000 at most.
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuery:
    """Which pending entries, in which order: oldest id, longest idle or most deliveries first."""

    limit: int = 100
    cursor: str | None = None
    sort: PendingSort = "idle"
    min_idle_ms: int = 0
    #: Only those of this consumer.
    consumer: str | None = None
    #: With `min_idle_ms`: look at so many at the most. Else the server looks at all of them in one command,
    #: and does nothing else meanwhile.
    most_read: int | None = None

    def __post_init__(self) -> None:
        check_positive_int("limit", self.limit)
        check_non_negative_int("min_idle_ms", self.min_idle_ms)
        if self.sort not in ("id", "idle", "deliveries"):
            raise ValueError(f"sort must be 'id', 'idle' or 'deliveries', got {self.sort!r}")


def pending_page(topic: Topic, group: str, partitions: Collection[int], query: PendingQuery) -> PendingPage:
    """One page of the group's pending entries in these partitions."""
    is_bounded = query.most_read is not None and query.min_idle_ms > 0
    if query.sort == "id" and not is_bounded:
        after = None if query.cursor is None else Position.parse(query.cursor)
        streams = [
            _entries(topic, group, partition, query, "-" if after is None else after.start_in(partition))
            for partition in partitions
        ]
        entries = tuple(islice(merge(*streams, key=lambda entry: entry.position), query.limit))
        is_full = len(entries) == query.limit
        return PendingPage(entries=entries, cursor=str(entries[-1].position) if is_full else None)
    most = _MAX_SORTED if query.most_read is None else query.most_read
    share = max(1, most // len(partitions))
    read = replace(query, min_idle_ms=0) if is_bounded else query
    found: list[PendingEntry] = []
    is_complete = True
    for partition in partitions:
        some = list(islice(_entries(topic, group, partition, read), share + 1))
        is_complete = is_complete and len(some) <= share
        found += [entry for entry in some[:share] if entry.idle_ms >= query.min_idle_ms]
    figures = {"id": None, "idle": "idle_ms", "deliveries": "deliveries"}
    figure = figures[query.sort]
    found.sort(key=lambda entry: (0 if figure is None else -getattr(entry, figure), entry.position))
    begin = int(query.cursor or 0)
    end = begin + query.limit
    cursor = str(end) if end < len(found) else None
    return PendingPage(entries=tuple(found[begin:end]), cursor=cursor, is_complete=is_complete)


def _entries(
    topic: Topic, group: str, partition: int, query: PendingQuery, start: str = "-"
) -> Iterator[PendingEntry]:
    idle = ("IDLE", query.min_idle_ms) if query.min_idle_ms else ()
    while True:
        of_consumer = () if query.consumer is None else (query.consumer,)
        command = ("XPENDING", topic.keys.stream(partition), group, *idle, start, "+", _PAGE, *of_consumer)
        rows = topic.call(*command, group=group, parse_detail=True)
        for row in rows:
            yield PendingEntry.of_row(partition, row)
        if len(rows) < _PAGE:
            return
        start = f"({rows[-1]['message_id'].decode()}"
