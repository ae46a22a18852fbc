"""What a Spark session needs to know of the data source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conquiet.spark.source import RedisStreamSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make `redis-stream` known to a session and let conditions on ids and times narrow its reads.

    Spark finds an installed package by itself; this is for sessions that do not look, and for push-down,
    which is off by default.
    """
    spark.dataSource.register(RedisStreamSource)
    spark.conf.set(_PUSHDOWN, "true")
