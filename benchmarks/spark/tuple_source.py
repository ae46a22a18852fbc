"""The data source that one writes first: the same splits, redis-py, a tuple for each row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from conquiet.spark.columns import SCHEMA
from conquiet.spark.options import ReadOptions
from conquiet.spark.read.batch_reader import StreamBatchReader


class TupleSource(DataSource):
    """Reads one stream."""

    @classmethod
    def name(cls) -> str:
        return "redis-stream-tuples"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(ReadOptions.of(self.options))


class TupleReader(DataSourceReader):
    """One tuple after the other."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return StreamBatchReader(self._options, SCHEMA).partitions()

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        import redis

        with redis.Redis.from_url(self._options.address.url) as client:
            start = partition.first
            while entries := client.xrange(partition.stream, start, partition.last, count=1_000):
                for entry_id, fields in entries:
                    text = entry_id.decode()
                    added = datetime.fromtimestamp(int(text.split("-")[0]) / 1000, UTC)
                    yield (partition.stream, 0, text, added, None, None, fields[b"data"].decode())
                start = f"({entries[-1][0].decode()}"
