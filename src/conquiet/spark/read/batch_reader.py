"""The batch side of the data source's reading."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from conquiet.queue.connection import Client
from conquiet.spark.columns import check_columns
from conquiet.spark.entry_ids import HIGHEST, LOWEST, IdRange, first_id_of, last_id_of
from conquiet.spark.options import ReadOptions
from conquiet.spark.outages import Patience, connected, connection_of_task
from conquiet.spark.read.pushdown import Pushdown, PushFilters
from conquiet.spark.read.range_reader import read_range
from conquiet.spark.read.rows import RowMaker
from conquiet.spark.read.splits import Split, splits_from, starts_in
from conquiet.spark.read.stream_info import read_info


class StreamBatchReader(DataSourceReader):
    """Reads a range of a stream or topic; planned once, then read by many tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_columns(schema)
        for name, value in (
            ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
            ("commitGroup", options.commit_group),
        ):
            if value is not None:
                raise ValueError(f"{name} is for streaming queries, use start and end here")
        self._options = options
        first, last = LOWEST, HIGHEST
        if options.start is not None and options.start != "earliest":
            first = max(first, first_id_of("start", options.start))
        if options.end is not None and options.end != "latest":
            last = last_id_of("end", options.end)
        self._within = IdRange(first, last)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._pushdown = Pushdown()
        self.pushFilters = PushFilters(self._pushdown.take)  # type: ignore[method-assign]

    def partitions(self) -> list[InputPartition]:
        """One split or more for each stream that has something; at least one, which may be empty."""
        splits = connected(
            self._options.address, Patience(self._options.retry_timeout_ms), self._splits_of_all
        )
        return splits or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split; runs in a task."""
        if isinstance(partition, Split):
            yield from rows_of(partition, self._options, self._schema)

    def _splits_of_all(self, client: Client) -> list[InputPartition]:
        splits: list[InputPartition] = []
        kept = self._pushdown.partitions
        for partition, stream in enumerate(self._options.address.streams(client)):
            if kept is None or partition in kept:
                info = read_info(client, stream)
                wanted = self._within.within(self._pushdown.range_in(info.whole)).within(info.whole)
                starts = starts_in(client, stream, wanted, info, self._options.rows_per_split)
                splits += splits_from(stream, partition, starts, wanted.last)
        return splits


def rows_of(split: Split, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one split, as Arrow batches of a few megabytes."""
    maker = RowMaker(
        stream=split.stream,
        partition=split.partition,
        is_topic=options.address.topic is not None,
        keeps_malformed=options.malformed == "keep",
        schema=schema,
    )
    patience = Patience(options.retry_timeout_ms)
    with connection_of_task(options.address, patience) as client:
        for entries in read_range(
            client, split.stream, split.range, fails_on_loss=options.fail_on_data_loss, patience=patience
        ):
            yield maker.batch(entries)
