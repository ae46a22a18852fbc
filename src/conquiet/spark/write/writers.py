"""The writing side of the data source: what runs in each task, and what ends a write."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from conquiet.spark.options import WriteOptions
from conquiet.spark.task_context import BATCH_ID, QUERY_ID, Attempt, current_task
from conquiet.spark.write.task_writer import TaskWriter, open_target

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
    #: The keys by which another attempt of the task knows what was added.
    keys: list[str]


class StreamBatchWriter(DataSourceArrowWriter):
    """`df.write`: one write with one name, known to all of its tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check_columns(options, schema)
        self._options = options
        self._write_id = options.dedupe_id or secrets.token_hex(10)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options, Attempt(self._write_id, 0, current_task().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what was kept for other attempts, unless the user named the write to run it again.

        A short mark stays: an attempt that Spark has given up, and that still runs, is refused.
        """
        if self._options.dedupe_id is not None:
            return
        window_ms = min(_STRAGGLERS_MS, self._options.dedupe_window_ms)
        with self._options.address.connect() as client:
            for message in messages:
                for key in message.keys if isinstance(message, WrittenRows) else ():
                    client.set(key, _AFTER_EVERY_BATCH, px=window_ms)


class StreamMicroBatchWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: named after the query, which keeps its id over restarts from its checkpoint."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check_columns(options, schema)
        if options.dedupe_id is not None:
            raise ValueError("dedupeId is for batch writes: a streaming query has an id of its own")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = current_task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise RuntimeError("this is not a micro-batch of a streaming query: only those can be written")
        return _write(iterator, self._options, Attempt(query, int(batch), task.partitionId()))


def _check_columns(options: WriteOptions, schema: StructType) -> None:
    """Refuse a DataFrame that has no payload, or columns that would be lost."""
    columns = {field.name: field.dataType for field in schema.fields}
    if not isinstance(columns.get("data"), (StringType, BinaryType)):
        raise TypeError(
            f"redis-stream writes the column `data`, a JSON object as text, of {schema.simpleString()}; "
            "`conquiet.spark.publish` makes it of the columns of a DataFrame"
        )
    known = {"data", "key", "headers", "partition", *_READ_ONLY_COLUMNS, options.dedupe_column}
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
    with (
        options.address.connect() as client,
        TaskWriter(client, open_target(client, options), options, attempt) as writer,
    ):
        for batch in iterator:
            writer.add(batch)
            rows += batch.num_rows
        writer.finish()
        return WrittenRows(rows, writer.keys)
