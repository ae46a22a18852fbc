"""Spark imports modules named `pyspark_…` by itself and takes their `DefaultSource`."""

from conquiet.spark.source import RedisStreamSource as DefaultSource

__all__ = ["DefaultSource"]
