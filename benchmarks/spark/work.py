"""What both sides of a comparison are given: a stream, empty or filled, and a topic."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis
from pyspark.sql import DataFrame

from benchmarks.bench import Bench
from benchmarks.errors import BenchmarkError
from benchmarks.spark.session import open_session, orders
from conquiet.mq import Topics


@dataclass(frozen=True, slots=True)
class SparkWork:
    """One timed run's own stream and topic."""

    url: str
    client: redis.Redis
    stream: str
    topic: str
    rows: int

    @property
    def orders(self) -> DataFrame:
        """The rows to write."""
        return orders(self.rows)


@contextmanager
def empty_targets(bench: Bench, rows: int) -> Iterator[SparkWork]:
    """A stream and a topic to write to; at the end one of them must have all the rows."""
    orders(rows)
    name = f"bench-{secrets.token_hex(4)}"
    topic = Topics(bench.client).create(name, 4)
    streams = [f"{name}-stream", *(topic.keys.stream(partition) for partition in topic.partitions)]
    yield SparkWork(bench.server.url, bench.client, streams[0], name, rows)
    added = sum(bench.client.xlen(stream) for stream in streams)
    Topics(bench.client).delete(name)
    bench.client.delete(streams[0])
    if added != rows:
        raise BenchmarkError(f"entries: {added} instead of {rows}")


@contextmanager
def filled_stream(bench: Bench, rows: int) -> Iterator[SparkWork]:
    """A stream to read; the same one for every round."""
    stream = f"bench-filled-{rows}"
    work = SparkWork(bench.server.url, bench.client, stream, "", rows)
    if not bench.client.exists(stream):
        save(work.orders.select("data"), work, stream=stream)
    yield work


def save(df: DataFrame, work: SparkWork, **options: str) -> None:
    """Write with the data source."""
    df.write.format("redis-stream").mode("append").options(url=work.url, **options).save()


def load(work: SparkWork, source: str = "redis-stream", **options: str) -> DataFrame:
    """Read with a data source."""
    reader = open_session().read.format(source)
    return reader.options(url=work.url, stream=work.stream, **options).load()


def use_all(df: DataFrame) -> None:
    """Make Spark produce every column of every row."""
    df.write.format("noop").mode("overwrite").save()
