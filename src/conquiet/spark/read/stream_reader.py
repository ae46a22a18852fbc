"""The streaming side of the data source's reading: offsets in Spark's checkpoint, no consumer group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

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
from conquiet.queue.connection import AS_BYTES, Client, visible_errors
from conquiet.spark.columns import check_columns
from conquiet.spark.entry_ids import EntryId, first_id_of
from conquiet.spark.options import ReadOptions
from conquiet.spark.read.added_counts import added_at_a_glance
from conquiet.spark.read.batch_reader import rows_of
from conquiet.spark.read.offsets import Offset, offsets_of, to_json
from conquiet.spark.read.progress import all_available, at_most, check_nothing_lost
from conquiet.spark.read.splits import Split, splits_from
from conquiet.spark.read.stream_info import StreamLook, look_at
from conquiet.spark.scripts import move_group

_GROUP_PREFIX = "group:"


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a stream or topic; lives as long as the query, in a process of the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_columns(schema)
        if options.end is not None:
            raise ValueError("end is for batch reads: a streaming query goes on, or stops by its trigger")
        start = options.start or "latest"
        if start not in ("earliest", "latest") and not start.startswith(_GROUP_PREFIX):
            first_id_of("start", start)
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        #: With Trigger.AvailableNow: how the streams were when it began.
        self._until: dict[int, StreamLook] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """Where a query without a checkpoint begins."""
        with self._options.address.connect() as client:
            return to_json(
                {
                    partition: self._beginning(client, stream)
                    for partition, stream in enumerate(self._options.address.streams(client))
                }
            )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """`maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """Remember where the streams end now."""
        with self._options.address.connect() as client:
            streams = self._options.address.streams(client)
            looks = [look_at(client, stream) for stream in streams]
        self._until = dict(enumerate(looks))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` has been processed completely by now."""
        offsets = offsets_of(start)
        with self._options.address.connect() as client:
            streams = self._options.address.streams(client)
            self._mirror(client, streams, offsets)
            # A partition that the topic has grown by is read from its beginning.
            known = {partition: offsets.get(partition, _BEGINNING) for partition in range(len(streams))}
            ends = self._ends(client, streams, known, limit)
        return start if ends == offsets else to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 -- Spark's name
        """Where the streams end, for the query's progress."""
        with self._options.address.connect() as client:
            looks = [look_at(client, stream) for stream in self._options.address.streams(client)]
        return to_json(
            {index: Offset(look.last_generated, look.entries_added) for index, look in enumerate(looks)}
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits that the end offset names; those of a replayed batch are the same."""
        before, splits = offsets_of(start), []
        with self._options.address.connect() as client:
            streams = self._options.address.streams(client)
            for partition, offset in offsets_of(end).items():
                known = before.get(partition, _BEGINNING)
                if offset.last > known.last:
                    splits += splits_from(streams[partition], partition, offset.starts, offset.last)
        return list(splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split; runs in a task."""
        if isinstance(partition, Split):
            yield from rows_of(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` has been processed."""
        if self._options.commit_group is not None:
            with self._options.address.connect() as client:
                self._mirror(client, self._options.address.streams(client), offsets_of(end))

    def stop(self) -> None:
        """Nothing is held between calls."""

    def _ends(
        self, client: Client, streams: list[str], starts: Mapping[int, Offset], limit: ReadLimit
    ) -> dict[int, Offset]:
        looks = self._checked_looks(client, streams, starts)
        looks = {partition: self._bounded(partition, look) for partition, look in looks.items()}
        if isinstance(limit, ReadMaxRows):
            ends = self._shared_out(client, streams, dict(starts), looks, limit.max_rows)
        else:
            size = self._options.rows_per_split
            ends = {
                partition: all_available(client, stream, starts[partition], looks[partition], size)
                for partition, stream in enumerate(streams)
            }
        # Once more: what was trimmed since the first look is in no split, so that no task would miss it.
        self._checked_looks(client, streams, starts)
        return ends

    def _checked_looks(
        self, client: Client, streams: list[str], starts: Mapping[int, Offset]
    ) -> dict[int, StreamLook]:
        looks = {partition: look_at(client, stream) for partition, stream in enumerate(streams)}
        if self._options.fail_on_data_loss:
            for partition, stream in enumerate(streams):
                check_nothing_lost(stream, starts[partition], looks[partition])
        return looks

    def _shared_out(
        self,
        client: Client,
        streams: list[str],
        ends: dict[int, Offset],
        looks: Mapping[int, StreamLook],
        rows: int,
    ) -> dict[int, Offset]:
        # An equal share for each partition; those with less leave theirs to the ones that come after.
        waiting = [index for index, look in looks.items() if look.last and look.last > ends[index].last]
        waiting.sort(key=lambda index: looks[index].length)
        for position, index in enumerate(waiting):
            share = -(-rows // (len(waiting) - position))
            last = looks[index].last
            if share and last is not None:
                size = self._options.rows_per_split
                ends[index], count = at_most(client, streams[index], ends[index], last, share, size)
                rows -= count
        return ends

    def _bounded(self, partition: int, look: StreamLook) -> StreamLook:
        if self._until is None or look.last is None:
            return look
        until = self._until.get(partition, StreamLook())
        last = until.last or EntryId(0, 0)
        if look.last <= last:
            return look
        return replace(look, last=last, entries_added=until.entries_added)

    def _beginning(self, client: Client, stream: str) -> Offset:
        look, start = look_at(client, stream), self._options.start or "latest"
        if start == "latest":
            return Offset(look.last_generated, look.entries_added)
        if start == "earliest":
            return Offset(EntryId(0, 0), look.removed)
        if start.startswith(_GROUP_PREFIX):
            return _position_of(client, stream, start.removeprefix(_GROUP_PREFIX), look)
        place = first_id_of("start", start).previous()
        return Offset(place, added_at_a_glance(look, place))

    def _mirror(self, client: Client, streams: list[str], offsets: Mapping[int, Offset]) -> None:
        group = self._options.commit_group
        if group is not None:
            for partition, offset in offsets.items():
                move_group(client, streams[partition], group, offset.last, offset.added)


_BEGINNING = Offset(EntryId(0, 0), 0)


def _position_of(client: Client, stream: str, group: str, look: StreamLook) -> Offset:
    with visible_errors("XINFO GROUPS", stream=stream, group=group):
        infos = client.execute_command("XINFO GROUPS", stream.encode(), **AS_BYTES)  # type: ignore[no-untyped-call]
    for info in map(as_mapping, infos):
        if info["name"] == group.encode():
            last, added = EntryId.parse(info["last-delivered-id"]), info.get("entries-read")
            is_cut_off = look.removed and (look.first is None or look.first > last)
            if added is None and (last == look.last_generated or not is_cut_off):
                # Of one that trimming has passed, nobody knows how many entries it has missed.
                added = added_at_a_glance(look, last)
            return Offset(last, added)
    raise QueueError("start", stream=stream, group=group, reason="the stream has no such group")
