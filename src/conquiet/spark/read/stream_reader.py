"""The streaming side of the data source's reading: offsets in Spark's checkpoint, no consumer group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

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

from conquiet.errors import QueueError
from conquiet.queue.backlog import as_mapping
from conquiet.queue.connection import Client, run_command
from conquiet.spark.columns import check_columns
from conquiet.spark.entry_ids import ZERO, EntryId, first_id_of
from conquiet.spark.options import ReadOptions
from conquiet.spark.outages import Patience, connected
from conquiet.spark.read.batch_reader import rows_of
from conquiet.spark.read.offsets import Offset, from_json, to_json
from conquiet.spark.read.progress import all_available, at_most, check_nothing_lost
from conquiet.spark.read.splits import Split, splits_from
from conquiet.spark.read.stream_info import StreamInfo, read_info
from conquiet.spark.scripts import move_group

_Result = TypeVar("_Result")

_GROUP_PREFIX = "group:"
_BEGINNING = Offset(ZERO, 0)


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a stream or topic; lives as long as the query, in a process of the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_columns(schema)
        if options.end is not None:
            raise ValueError("end is for batch reads: a streaming query goes on, or stops by its trigger")
        self._start = options.start or "latest"
        if self._start not in ("earliest", "latest") and not self._start.startswith(_GROUP_PREFIX):
            first_id_of("start", self._start)
        self._options = options
        self._address = options.address
        self._schema = to_arrow_schema(schema, timezone="UTC")
        #: With Trigger.AvailableNow: the streams when it began.
        self._until: dict[int, StreamInfo] | None = None
        #: Of each partition: the last offset whose entries were counted, and how many were removed by then.
        self._counted: dict[int, tuple[Offset, int | None]] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """Where a query without a checkpoint begins."""

        def begin(client: Client) -> dict[str, Any]:
            streams = self._address.streams(client)
            return to_json({index: _beginning(client, key, self._start) for index, key in enumerate(streams)})

        return self._connected(begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """`maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """Remember where the streams end now."""
        self._until = self._connected(lambda client: _infos(client, self._address.streams(client)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` has been processed completely by now."""
        offsets = from_json(start)
        ends = self._connected(lambda client: self._ends(client, offsets, limit))
        return start if ends == offsets else to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 -- Spark's name
        """Where the streams end, for the query's progress."""
        infos = self._connected(lambda client: _infos(client, self._address.streams(client)))
        ends = {index: Offset(info.last_generated, info.entries_added) for index, info in infos.items()}
        return to_json(ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits that the end offset names; those of a replayed batch are the same.

        The start of the first batch is not kept by Spark: when that batch is replayed, `start` is where a new
        query would begin, and says nothing about what the batch has read.
        """
        before, splits = from_json(start), []
        streams = self._connected(self._address.streams)
        for partition, offset in from_json(end).items():
            if offset != before.get(partition, _BEGINNING):
                splits += splits_from(streams[partition], partition, offset.starts, offset.last)
        return list(splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split; runs in a task."""
        if isinstance(partition, Split):
            yield from rows_of(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` has been processed."""
        if self._options.commit_group is not None:
            self._connected(
                lambda client: self._move_group(client, self._address.streams(client), from_json(end))
            )

    def stop(self) -> None:
        """Nothing is open between calls."""

    def _ends(self, client: Client, offsets: Mapping[int, Offset], limit: ReadLimit) -> dict[int, Offset]:
        streams = self._address.streams(client)
        self._move_group(client, streams, offsets)
        # A partition that the topic has grown by is read from its beginning.
        known = {partition: offsets.get(partition, _BEGINNING) for partition in range(len(streams))}
        infos = self._checked_infos(client, streams, known)
        if self._until is not None:
            until = self._until
            infos = {index: info.bounded_by(until.get(index, StreamInfo())) for index, info in infos.items()}
        if isinstance(limit, ReadMaxRows):
            ends = self._share(client, streams, known, infos, limit.max_rows)
        else:
            size = self._options.rows_per_split
            ends = {
                partition: all_available(client, stream, known[partition], infos[partition], size)
                for partition, stream in enumerate(streams)
            }
        # Once more: what was trimmed since the first check is in no split, so that no task would miss it.
        self._checked_infos(client, streams, known)
        return ends

    def _connected(self, call: Callable[[Client], _Result]) -> _Result:
        return connected(self._address, Patience(self._options.retry_timeout_ms), call)

    def _checked_infos(
        self, client: Client, streams: list[str], starts: Mapping[int, Offset]
    ) -> dict[int, StreamInfo]:
        infos = _infos(client, streams)
        if self._options.fail_on_data_loss:
            for partition, stream in enumerate(streams):
                check_nothing_lost(stream, starts[partition], infos[partition])
        return infos

    def _share(
        self,
        client: Client,
        streams: list[str],
        starts: Mapping[int, Offset],
        infos: Mapping[int, StreamInfo],
        rows: int,
    ) -> dict[int, Offset]:
        # An equal share for each partition; those with less leave theirs to the ones that come after.
        ends = dict(starts)
        waiting = [
            (info.length, index, info.last)
            for index, info in infos.items()
            if info.last is not None and info.last > ends[index].last
        ]
        for position, (_, index, last) in enumerate(sorted(waiting)):
            share = -(-rows // (len(waiting) - position))
            if share:
                start, size = ends[index], self._options.rows_per_split
                counted, removed = self._counted.get(index, (None, None))
                if counted != start:
                    removed = None
                ends[index], count = at_most(client, streams[index], start, last, share, size, removed)
                self._counted[index] = ends[index], infos[index].removed
                rows -= count
        return ends

    def _move_group(self, client: Client, streams: list[str], offsets: Mapping[int, Offset]) -> None:
        group = self._options.commit_group
        if group is not None:
            for partition, offset in offsets.items():
                move_group(client, streams[partition], group, offset.last, offset.added)


def _infos(client: Client, streams: list[str]) -> dict[int, StreamInfo]:
    return {partition: read_info(client, stream) for partition, stream in enumerate(streams)}


def _beginning(client: Client, stream: str, start: str) -> Offset:
    info = read_info(client, stream)
    if start == "latest":
        return Offset(info.last_generated, info.entries_added)
    if start == "earliest":
        return Offset(ZERO, info.removed)
    if not start.startswith(_GROUP_PREFIX):
        before = first_id_of("start", start).previous()
        return Offset(before, info.added_up_to(before))
    name = start.removeprefix(_GROUP_PREFIX)
    groups = run_command(client, "XINFO GROUPS", stream.encode(), stream=stream, group=name)
    for group in map(as_mapping, groups):
        if group["name"] == name.encode():
            last, added = EntryId.parse(group["last-delivered-id"]), group.get("entries-read")
            is_cut_off = info.removed and (info.first is None or info.first > last)
            if added is None and (last == info.last_generated or not is_cut_off):
                # Of a group that trimming has passed, it is not known how many entries it has missed.
                added = info.added_up_to(last)
            return Offset(last, added)
    raise QueueError("start", stream=stream, group=name, reason="the stream has no such group")
