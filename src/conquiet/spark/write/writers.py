"""The writing side of the data source: what runs in each task, and what ends a write."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from conquiet.queue.connection import Client, run_command
from conquiet.spark.errors import RowsLostError
from conquiet.spark.options import WriteOptions
from conquiet.spark.outages import Patience, again_after_outages, connected, connection_of_task
from conquiet.spark.scripts import new_run_number, rows_recorded
from conquiet.spark.task_context import BATCH_ID, QUERY_ID, Attempt, current_task
from conquiet.spark.write.field_target import field_columns
from conquiet.spark.write.task_writer import TaskPartitions, TaskWriter, check_no_rows_left, open_target
from conquiet.spark.write.topics_writer import TOPIC, TopicsRecord, TopicsWriter, of_topic

#: Longer than an attempt goes on after Spark has stopped it.
_STRAGGLERS_MS = 600_000

#: As the batch of a task: an attempt with any other batch is too late.
_AFTER_EVERY_BATCH = "9" * 20

#: Columns of entries that were read; the entry that is written has its own.
_READ_ONLY_COLUMNS = frozenset(("stream", "id", "timestamp"))


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task did."""

    rows: int
    write_id: str
    run: int | None
    #: The keys by which another attempt of the task knows what was added.
    keys: list[str]
    #: How many rows each of them must have, of those with rows; and when they had, in ms since 1970.
    records: dict[str, int] = field(default_factory=dict)
    ended_ms: int = 0


class StreamBatchWriter(DataSourceArrowWriter):
    """`df.write`: one write with one name, known to all of its tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._fields = _check_columns(options, schema)
        self._options = options
        self._write_id = options.dedupe_id or secrets.token_hex(10)
        self._run = None if options.dedupe_id is None else _new_run(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options, self._fields, self._attempt(current_task().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what was kept for other attempts, unless the user named the write to run it again.

        A short mark stays: an attempt that Spark has given up, and that still runs, is refused.

        Raises:
            RowsDifferError: an earlier run of the write has added rows that this one does not have.
            RowsLostError: a failover has lost rows of tasks that had ended.
        """
        _check_records(self._options, messages)
        if self._run is not None:
            _check_run(self._options, self._attempt(0))
            return
        keys = [key for message in messages if isinstance(message, WrittenRows) for key in message.keys]
        window_ms = min(_STRAGGLERS_MS, self._options.dedupe_window_ms)

        def forget(client: Client) -> None:
            for key in keys:
                run_command(
                    client, "SET", key.encode(), _AFTER_EVERY_BATCH, "PX", window_ms, stream=key, group=None
                )

        connected(self._options.address, Patience(self._options.retry_timeout_ms), forget)

    def _attempt(self, task: int) -> Attempt:
        return Attempt(self._write_id, 0, task, self._run)


class StreamMicroBatchWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: named after the query, which keeps its id over restarts from its checkpoint."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._fields = _check_columns(options, schema)
        if options.dedupe_id is not None:
            raise ValueError("dedupeId is for batch writes: a streaming query has an id of its own")
        self._options = options
        self._run = _new_run(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = current_task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise RuntimeError("this is not a micro-batch of a streaming query: only those can be written")
        attempt = Attempt(query, int(batch), task.partitionId(), self._run)
        return _write(iterator, self._options, self._fields, attempt)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See that a batch that was run again had the rows of its earlier runs.

        Raises:
            RowsDifferError: it had not.
            RowsLostError: a failover has lost rows of tasks that had ended.
        """
        _check_records(self._options, messages)
        # Spark makes another writer for this, in a process of its own: the run is that of the tasks.
        for message in messages:
            if isinstance(message, WrittenRows) and message.run is not None:
                _check_run(self._options, Attempt(message.write_id, batchId, 0, message.run))
                return


def _new_run(options: WriteOptions) -> int | None:
    """The number of a run; `None` where rows are not known by their hashes."""
    if options.dedupe == "off" or options.dedupe_column is not None:
        return None
    address = options.address
    stream = address.stream or (f"stream:topic:{address.topic}" if address.topic else "conquiet:spark:topics")
    patience = Patience(options.retry_timeout_ms)
    return connected(options.address, patience, lambda client: new_run_number(client, stream))


def _check_records(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """See that the server still has what it had confirmed to tasks that have ended since."""

    # What expires after the window says nothing any more.
    since_ms = time.time_ns() // 1_000_000 - options.dedupe_window_ms
    written = [one for one in messages if isinstance(one, WrittenRows) and one.ended_ms > since_ms]

    records = {key: rows for message in written for key, rows in message.records.items()}

    def check(client: Client) -> None:
        for (key, rows), there in zip(records.items(), rows_recorded(client, list(records)), strict=True):
            if there < rows:
                raise RowsLostError(stream=key, rows=rows - there)

    connected(options.address, Patience(options.retry_timeout_ms), check)


def _check_run(options: WriteOptions, attempt: Attempt) -> None:
    window_ms = options.dedupe_window_ms

    def check(client: Client) -> None:
        if options.address.stream is not None:
            check_no_rows_left(client, [options.address.stream], attempt, window_ms)
            return
        topic = options.address.topic
        for name in TopicsRecord(client, attempt, window_ms).of_write() if topic is None else [topic]:
            streams = open_target(client, of_topic(options, name)).streams
            recorded = TaskPartitions(client, streams, attempt, window_ms).recorded_by_all()
            check_no_rows_left(client, recorded, attempt, window_ms)

    connected(options.address, Patience(options.retry_timeout_ms), check)


def _check_columns(options: WriteOptions, schema: StructType) -> list[str]:
    """Refuse a DataFrame that has no payload, or columns that would be lost; returns the fields."""
    columns = {field.name: field.dataType for field in schema.fields}
    if options.dedupe_column is not None and options.dedupe_column not in columns:
        raise ValueError(f"there is no column {options.dedupe_column!r}, which dedupeColumn names")
    if options.fields is not None:
        return field_columns(options, schema)
    if not options.address.given and not isinstance(columns.get(TOPIC), StringType):
        raise options.address.must_be_given()
    if not isinstance(columns.get("data"), (StringType, BinaryType)):
        raise TypeError(
            f"redis-stream writes the column `data`, a JSON object as text, of {schema.simpleString()}; "
            "`conquiet.spark.publish` makes it of the columns of a DataFrame"
        )
    known = {TOPIC, "data", "key", "headers", "partition", *_READ_ONLY_COLUMNS, options.dedupe_column}
    unknown = sorted(name for name in columns if name not in known)
    if unknown:
        raise ValueError(
            f"redis-stream has no place for {', '.join(unknown)}: drop them, or put them into `data` with "
            "`conquiet.spark.publish`"
        )
    return []


def _write(
    iterator: Iterator[pa.RecordBatch], options: WriteOptions, fields: Sequence[str], attempt: Attempt
) -> WriterCommitMessage:
    rows, patience = 0, Patience(options.retry_timeout_ms)
    with connection_of_task(options.address, patience) as client:
        opened: TaskWriter | TopicsWriter
        if options.address.given:
            target = again_after_outages(partial(open_target, client, options, fields), patience)
            opened = TaskWriter(client, target, options, attempt, patience)
        else:
            opened = TopicsWriter(client, options, attempt, patience)
        with opened as writer:
            for batch in iterator:
                writer.add(batch)
                rows += batch.num_rows
            writer.finish()
            ended_ms = time.time_ns() // 1_000_000
            return WrittenRows(rows, attempt.write_id, attempt.run, writer.keys, writer.records, ended_ms)
