"""The batch side of the data source's reading."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from conquiet.queue.connection import Client
from conquiet.spark.columns import Columns, columns_of
from conquiet.spark.entry_ids import IdRange
from conquiet.spark.options import ReadOptions
from conquiet.spark.outages import Patience, connected, connection_of_task
from conquiet.spark.read.field_rows import FieldRowMaker
from conquiet.spark.read.positions import Positions, first_id_at, is_of_group, last_id_at, offset_at
from conquiet.spark.read.progress import check_nothing_lost
from conquiet.spark.read.pushdown import Pushdown, PushFilters
from conquiet.spark.read.range_reader import read_range
from conquiet.spark.read.rows import RowMaker
from conquiet.spark.read.sources import Sources
from conquiet.spark.read.splits import Split, splits_from, starts_in
from conquiet.spark.read.stream_info import read_info


class StreamBatchReader(DataSourceReader):
    """Reads a range of a stream or topic; planned once, then read by many tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, value in (
            ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
            ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
            ("commitGroup", options.commit_group),
        ):
            if value is not None:
                raise ValueError(f"{name} is for streaming queries, use start and end here")
        self._options = options
        self._start = Positions("start", options.start, "earliest")
        self._end = Positions("end", options.end, "latest")
        self._sources = Sources(options.address, options.discovery_interval_ms)
        self._columns = columns_of(schema, options)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._pushdown = Pushdown(self._columns.of_entries)
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
            yield from rows_of(partition, self._options, self._columns, self._schema)

    def _splits_of_all(self, client: Client) -> list[InputPartition]:
        kept, is_only = self._pushdown.partitions, not self._options.address.is_of_several
        all_sources = self._sources.find(client)
        for positions in (self._start, self._end):
            positions.check_names(all_sources, is_only=is_only)
        sources = [source for source in all_sources if kept is None or source.partition in kept]
        infos = [read_info(client, source.stream) for source in sources]
        total = max(1, sum(info.length for info in infos))
        splits: list[InputPartition] = []
        for source, info in zip(sources, infos, strict=True):
            start = self._start.of(source, is_only=is_only)
            if is_of_group(start) and self._options.fail_on_data_loss:
                check_nothing_lost(source.stream, offset_at(client, source.stream, start), info)
            first = first_id_at(client, source.stream, start)
            last = last_id_at(client, source.stream, self._end.of(source, is_only=is_only))
            within = IdRange(first, last).within(self._pushdown.range_in(info.whole))
            wanted = within.within(info.whole)
            size, share = (
                self._options.rows_per_split,
                -(-self._options.min_partitions * info.length // total),
            )
            starts = starts_in(client, source.stream, wanted, info, size, info.length, share)
            splits += splits_from(source, starts, wanted.last)
        return splits


def rows_of(
    split: Split, options: ReadOptions, columns: Columns, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of one split, as Arrow batches of a few megabytes."""
    keeps_malformed = options.malformed == "keep"
    maker: RowMaker | FieldRowMaker
    if columns.are_fields:
        maker = FieldRowMaker(split=split, columns=columns, keeps_malformed=keeps_malformed, schema=schema)
    else:
        is_topic = options.address.is_of_topics
        maker = RowMaker(split=split, is_topic=is_topic, keeps_malformed=keeps_malformed, schema=schema)
    patience = Patience(options.retry_timeout_ms)
    with connection_of_task(options.address, patience) as client:
        for entries in read_range(
            client, split.stream, split.range, fails_on_loss=options.fail_on_data_loss, patience=patience
        ):
            yield maker.batch(entries)
