"""The writing side of the data source: what runs in each task, and what ends a write."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from conquiet.errors import QueueError
from conquiet.queue.connection import Client, key_beside
from conquiet.spark.lanes import AFTER_EVERY_BATCH, Attempt, Lane, NamedLane, PlainLane, TaskLane
from conquiet.spark.node_wire import NodeWire
from conquiet.spark.options import WriteOptions
from conquiet.spark.places import open_place
from conquiet.spark.queries import BATCH_ID, QUERY_ID
from conquiet.spark.targets import Target, open_target
from conquiet.spark.task_records import TaskRecord
from conquiet.spark.wire import node_of

if TYPE_CHECKING:
    from types import TracebackType

#: Longer than an attempt that was told to stop goes on.
_STRAGGLERS_MS = 600_000

#: Facts of an entry that was read; the entry that is written has its own.
_OF_OLD_ENTRIES = frozenset(("stream", "id", "timestamp"))


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task did."""

    rows: int
    #: The keys by which another attempt of the task would know what was added.
    keys: list[str]


class TaskWriter:
    """One attempt of one task: a connection to each server that it needs, for as long as it runs."""

    def __init__(self, client: Client, target: Target, options: WriteOptions, attempt: Attempt) -> None:
        self._client = client
        self._target = target
        self._options = options
        self._attempt = attempt
        self._nodes: dict[int, NodeWire] = {}
        self._lanes: dict[str, Lane] = {}
        self._record = self._open_record()
        self._count = len(target.streams)
        self.keys: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch, each to its stream."""
        if self._record is not None and not self._lanes:
            # As for the attempt before, also if the topic has grown since: each row to the same partition.
            self._count = self._record.count()
            self._target.spread_over(self._count)
        for load in self._target.loads(batch):
            if load.stream not in self._lanes:
                self._lanes[load.stream] = self._open_lane(load.stream)
            self._lanes[load.stream].add(load)

    def finish(self) -> None:
        """Wait until all rows are in their streams.

        Raises:
            RowsDifferError: another attempt has added rows that this one does not have, to whatever stream.
        """
        for stream in self._streams_of_others():
            self._lanes[stream] = self._open_lane(stream)
        for lane in self._lanes.values():
            lane.finish()

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self._nodes.values():
            node.close()

    def _open_lane(self, stream: str) -> Lane:
        node, options = self._node(stream), self._options
        if options.dedupe_column is not None:
            return NamedLane(node, stream, self._target.dedupe_keys(stream), options.dedupe_window_ms)
        if options.dedupe == "off":
            return PlainLane(node, stream)
        if self._record is not None:
            self._note(self._record, stream)
        key = key_beside(stream, f"spark:{self._attempt.write_id}:{self._attempt.task}")
        self.keys.append(key)
        return TaskLane(node, stream, key, self._attempt, options.dedupe_window_ms)

    def _open_record(self) -> TaskRecord | None:
        options = self._options
        if options.place.topic is None or options.dedupe == "off" or options.dedupe_column is not None:
            return None
        return TaskRecord(self._client, self._target.streams, self._attempt, options.dedupe_window_ms)

    def _note(self, record: TaskRecord, stream: str) -> None:
        # Before the first row: an attempt that comes after a crash looks there.
        agreed = record.note(stream)
        if record.key not in self.keys:
            self.keys.append(record.key)
        if agreed != self._count:
            raise QueueError(
                "XADD",
                stream=stream,
                group=None,
                reason=f"another attempt of the task spreads rows over {agreed} partitions, this one over "
                f"{self._count}: the topic has grown meanwhile, and the task must begin anew",
            )

    def _streams_of_others(self) -> list[str]:
        if self._record is not None:
            written = self._record.noted()
        elif self._options.dedupe == "off" or self._options.dedupe_column is not None:
            written = []
        else:
            written = self._target.streams
        return [stream for stream in written if stream not in self._lanes]

    def _node(self, stream: str) -> NodeWire:
        server = id(node_of(self._client, stream))
        if server not in self._nodes:
            self._nodes[server] = NodeWire(self._client, stream)
        return self._nodes[server]


class StreamBatchWriter(DataSourceArrowWriter):
    """`df.write`: one write with one name, known to all of its tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_written_columns(options, schema)
        self._options = options
        self._write_id = options.dedupe_id or secrets.token_hex(10)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        return _write(iterator, self._options, Attempt(self._write_id, 0, _task().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what was kept for other attempts, unless the user named the write to run it again.

        A short mark stays: an attempt that Spark has given up, and that still runs, finds itself refused.
        """
        if self._options.dedupe_id is not None:
            return
        window_ms = min(_STRAGGLERS_MS, self._options.dedupe_window_ms)
        with open_place(self._options.place) as client:
            for message in messages:
                for key in message.keys if isinstance(message, WrittenRows) else ():
                    client.set(key, AFTER_EVERY_BATCH, px=window_ms)


class StreamMicroBatchWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: named after the query, which keeps its id over restarts from its checkpoint."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_written_columns(options, schema)
        if options.dedupe_id is not None:
            raise ValueError("dedupeId is for batch writes: a streaming query has an id of its own")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise RuntimeError(
                "Spark did not say which batch of which query this is; only micro-batches can be written"
            )
        return _write(iterator, self._options, Attempt(query, int(batch), task.partitionId()))


def check_written_columns(options: WriteOptions, schema: StructType) -> None:
    """Refuse a DataFrame that has no payload, or columns that would be lost."""
    columns = {field.name: field.dataType for field in schema.fields}
    if not isinstance(columns.get("data"), (StringType, BinaryType)):
        raise TypeError(
            f"redis-stream writes the column `data`, a JSON object as text, of {schema.simpleString()}; "
            "`conquiet.spark.publish` makes it of the columns of a DataFrame"
        )
    known = {"data", "key", "headers", "partition", *_OF_OLD_ENTRIES, options.dedupe_column}
    unknown = sorted(name for name in columns if name not in known)
    if unknown:
        raise ValueError(
            f"redis-stream has no place for {', '.join(unknown)}: drop them, or put them into `data` with "
            "`conquiet.spark.publish`"
        )
    if options.dedupe_column is not None and options.dedupe_column not in columns:
        raise ValueError(f"there is no column {options.dedupe_column!r}, which dedupeColumn names")


def _write(
    iterator: Iterator[pa.RecordBatch], options: WriteOptions, attempt: Attempt
) -> WriterCommitMessage:
    rows = 0
    with open_place(options.place) as client:
        with TaskWriter(client, open_target(client, options), options, attempt) as writer:
            for batch in iterator:
                writer.add(batch)
                rows += batch.num_rows
            writer.finish()
        return WrittenRows(rows, writer.keys)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("a row can only be written in a task of Spark")
    return task
