"""The data source `redis-stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType


# Each method imports what it needs: Spark imports this module in every session, only to learn its name.
class RedisStreamSource(DataSource):
    """Reads and writes Redis streams and the topics of `conquiet.mq`.

    Examples:
        >>> spark.dataSource.register(RedisStreamSource)  # where pyspark does not find it by itself
        >>> spark.read.format("redis-stream").options(url=server.url, stream="empty").load().count()
        0
    """

    @classmethod
    def name(cls) -> str:
        return "redis-stream"

    def schema(self) -> StructType | str:
        """Every column; a schema given to the reader chooses some of them."""
        from conquiet.spark.columns import schema_for
        from conquiet.spark.options import ReadOptions

        return schema_for(ReadOptions.of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from conquiet.spark.options import ReadOptions
        from conquiet.spark.read.batch_reader import StreamBatchReader

        return StreamBatchReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        from conquiet.spark.options import ReadOptions
        from conquiet.spark.read.stream_reader import StreamMicroBatchReader

        return StreamMicroBatchReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from conquiet.spark.options import WriteOptions
        from conquiet.spark.write.writers import StreamBatchWriter

        _check_mode(overwrite)
        return StreamBatchWriter(WriteOptions.of(self.options), schema)

    def streamWriter(  # noqa: N802 -- Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from conquiet.spark.options import WriteOptions
        from conquiet.spark.write.writers import StreamMicroBatchWriter

        _check_mode(overwrite)
        return StreamMicroBatchWriter(WriteOptions.of(self.options), schema)


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise ValueError('a stream is only added to: use mode("append"), or outputMode append or update')


def register(spark: SparkSession) -> None:
    """Make `redis-stream` known to a session and let conditions on ids and times narrow its reads.

    Spark finds an installed package by itself, unless a session forbids it; push-down is off by default.

    Examples:
        >>> register(spark)  # with push-down of conditions on id, timestamp and partition
    """
    spark.dataSource.register(RedisStreamSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
