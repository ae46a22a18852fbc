"""The streaming side of the data source's reading: offsets in Spark's checkpoint, no consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from conquiet.masking import mask
from conquiet.queue.connection import Client
from conquiet.spark.columns import columns_of
from conquiet.spark.entry_ids import ZERO
from conquiet.spark.options import ReadOptions
from conquiet.spark.outages import Patience, connected
from conquiet.spark.read.backlog import TOTALS, backlog_of, entries_behind
from conquiet.spark.read.batch_reader import rows_of
from conquiet.spark.read.offsets import Offset, from_json, to_json
from conquiet.spark.read.positions import NoGroupError, Positions, offset_at
from conquiet.spark.read.progress import all_available, at_most, check_nothing_lost
from conquiet.spark.read.sources import Source, Sources, check_none_missing
from conquiet.spark.read.splits import Split, rows_per_split, splits_from
from conquiet.spark.read.stream_info import StreamInfo, read_info
from conquiet.spark.scripts import move_group

_Result = TypeVar("_Result")

_BEGINNING = Offset(ZERO, 0)

#: Instead of the name of a stream: it was not known where to begin.
_NO_GROUP = ""


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams or topics; lives as long as the query, in a process of the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.end is not None:
            raise ValueError("end is for batch reads: a streaming query goes on, or stops by its trigger")
        self._start = Positions("start", options.start, "latest")
        self._options = options
        self._sources = Sources(options.address, options.discovery_interval_ms)
        self._is_only = not options.address.is_of_several
        self._columns = columns_of(schema, options)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        #: With Trigger.AvailableNow: the streams when it began.
        self._until: dict[str, StreamInfo] | None = None
        #: Of each source: the last offset whose entries were counted, and how many were removed by then.
        self._counted: dict[str, tuple[Offset, int | None]] = {}
        #: Where the last micro-batch that was planned ends, and until when the next one may wait.
        self._planned: dict[str, Offset] = {}
        self._waits_until: float | None = None
        #: Tries after an outage, of this planner.
        self._retries = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """Where a query without a checkpoint begins."""
        try:
            return to_json(self._connected(self._begin))
        except NoGroupError:
            # A first batch that is run again is all in its checkpoint; without one `latestOffset` fails.
            return to_json({_NO_GROUP: _BEGINNING})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """`maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """Remember where the streams end now."""
        self._until = self._connected(lambda client: _infos(client, self._sources.find(client)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` has been processed completely by now."""
        offsets = self._connected(self._begin) if _NO_GROUP in start else from_json(start)
        ends = self._connected(lambda client: self._ends(client, offsets, limit))
        self._planned = ends
        return start if ends == offsets else to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 -- Spark's name
        """Where the streams end and what is behind the micro-batch, for the query's progress."""

        def report(client: Client) -> dict[str, Any]:
            sources = self._sources.find(client)
            return backlog_of(client, sources, self._planned, _infos(client, sources))

        backlog = self._connected(report)
        address = self._options.address
        backlog[TOTALS] |= {
            "retries": self._retries,
            "from": address.place,
            "server": server_without_secrets(address.url),
        }
        return backlog

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits that the end offset names; those of a replayed batch are the same.

        The start of the first batch is not kept by Spark: when that batch is replayed, `start` is where a new
        query would begin, and says nothing about what the batch has read.
        """
        before, ends, splits = from_json(start), from_json(end), []
        # Of a batch that is run again, the end was not planned by this reader.
        self._planned = ends
        found = self._connected(self._sources.find)
        check_none_missing(found, ends, fails_on_loss=self._options.fail_on_data_loss)
        sources = {source.name: source for source in found}
        for name, offset in ends.items():
            if name in sources and offset != before.get(name, _BEGINNING):
                splits += splits_from(sources[name], offset.starts, offset.last)
        return list(splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split; runs in a task."""
        if isinstance(partition, Split):
            yield from rows_of(partition, self._options, self._columns, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` has been processed."""
        if self._options.commit_group is not None:
            self._connected(
                lambda client: self._move_group(client, self._sources.find(client), from_json(end))
            )

    def stop(self) -> None:
        """Nothing is open between calls."""

    def _begin(self, client: Client) -> dict[str, Offset]:
        sources, is_only = self._sources.find(client), self._is_only
        self._start.check_names(sources, is_only=is_only)
        return {
            source.name: offset_at(client, source.stream, self._start.of(source, is_only=is_only))
            for source in sources
        }

    def _ends(self, client: Client, offsets: Mapping[str, Offset], limit: ReadLimit) -> dict[str, Offset]:
        sources = self._sources.find(client)
        check_none_missing(sources, offsets, fails_on_loss=self._options.fail_on_data_loss)
        self._move_group(client, sources, offsets)
        # A stream or partition that is new is read from its beginning.
        known = {source.name: offsets.get(source.name, _BEGINNING) for source in sources}
        infos = self._checked_infos(client, sources, known)
        waiting = [
            _Waiting.of(source, known[source.name], infos[source.name], self._until) for source in sources
        ]
        if self._must_wait([one.counted for one in waiting]):
            return dict(offsets)
        entries = sum(one.most for one in waiting)
        size = rows_per_split(self._options.rows_per_split, entries, self._options.min_partitions)
        if isinstance(limit, ReadMaxRows):
            size = rows_per_split(size, min(entries, limit.max_rows), self._options.min_partitions)
            ends = known | self._share(client, waiting, limit.max_rows, size)
        else:
            ends = {
                one.name: all_available(client, one.stream, one.start, one.info, size, one.most)
                for one in waiting
            }
        # Once more: what was trimmed since the first check is in no split, so that no task would miss it.
        self._checked_infos(client, sources, known)
        return ends

    def _must_wait(self, behind: Sequence[int | None]) -> bool:
        """Whether there are fewer than `minOffsetsPerTrigger` entries, for less than `maxTriggerDelayMs`."""
        wanted = self._options.min_offsets_per_trigger
        # Where Redis does not count, or a query ends with what is there, nothing is waited for.
        if wanted is None or self._until is not None or None in behind:
            return False
        number, now = sum(count or 0 for count in behind), time.monotonic()
        if self._waits_until is None:
            self._waits_until = now + self._options.max_trigger_delay_ms / 1_000
        if number < wanted and (not number or now < self._waits_until):
            return True
        self._waits_until = None
        return False

    def _connected(self, call: Callable[[Client], _Result]) -> _Result:
        patience = Patience(self._options.retry_timeout_ms)
        try:
            return connected(self._options.address, patience, call)
        finally:
            self._retries += patience.retries

    def _checked_infos(
        self, client: Client, sources: Sequence[Source], starts: Mapping[str, Offset]
    ) -> dict[str, StreamInfo]:
        infos = _infos(client, sources)
        if self._options.fail_on_data_loss:
            for source in sources:
                check_nothing_lost(source.stream, starts[source.name], infos[source.name])
        return infos

    def _share(self, client: Client, waiting: Sequence[_Waiting], rows: int, size: int) -> dict[str, Offset]:
        # An equal share for each stream; those with less leave theirs to the ones that come after.
        ends = {}
        unread = sorted((one for one in waiting if one.has_more), key=lambda one: one.most)
        for position, one in enumerate(unread):
            share = -(-rows // (len(unread) - position))
            if share and one.info.last is not None:
                counted, removed = self._counted.get(one.name, (None, None))
                if counted != one.start:
                    removed = None
                end, count = at_most(client, one.stream, one.start, one.info.last, share, size, removed)
                self._counted[one.name] = end, one.removed
                ends[one.name] = end
                rows -= count
        return ends

    def _move_group(self, client: Client, sources: Sequence[Source], offsets: Mapping[str, Offset]) -> None:
        group = self._options.commit_group
        if group is not None:
            for source in sources:
                offset = offsets.get(source.name)
                if offset is not None:
                    move_group(client, source.stream, group, offset.last, offset.added)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What one stream has behind an offset."""

    name: str
    stream: str
    start: Offset
    #: With Trigger.AvailableNow as if the stream ended where it did when the query began.
    info: StreamInfo
    #: How many entries were removed from the stream so far.
    removed: int | None

    @classmethod
    def of(
        cls, source: Source, start: Offset, info: StreamInfo, until: Mapping[str, StreamInfo] | None
    ) -> Self:
        bounded = info if until is None else info.bounded_by(until.get(source.name, StreamInfo()))
        return cls(source.name, source.stream, start, bounded, info.removed)

    @property
    def counted(self) -> int | None:
        """How many entries; `None` if Redis does not know."""
        return entries_behind(self.start, self.info)

    @property
    def most(self) -> int:
        """How many entries at most."""
        return self.info.length if self.counted is None else self.counted

    @property
    def has_more(self) -> bool:
        return self.info.last is not None and self.info.last > self.start.last


def server_without_secrets(url: str) -> str:
    """The server of a URL, without user, password and parameters."""
    scheme, _, rest = mask(url).partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def _infos(client: Client, sources: Sequence[Source]) -> dict[str, StreamInfo]:
    return {source.name: read_info(client, source.stream) for source in sources}
