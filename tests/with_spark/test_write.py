"""Batch writes from Spark: rows become entries, each once, also when workers die."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from conquiet.mq import Envelope
from conquiet.spark import RedisStreamSource, publish
from tests.eventually import eventually
from tests.with_spark.processes import pids_connected_to
from tests.with_spark.server_side import envelopes_in, numbers_in, streams_of


def orders(spark, count: int, parts: int = 2):
    return spark.range(0, count, 1, parts).select(
        F.concat(F.lit("customer-"), F.col("id") % 97).alias("key"),
        F.to_json(F.struct(F.col("id").alias("number"), F.lit("x" * 150).alias("pad"))).alias("data"),
    )


def test_rows_become_entries_and_a_mark_for_stragglers_stays_for_a_while(spark, write, valkey, stream):
    write(orders(spark, 5_000).select("data"), stream=stream)

    assert numbers_in(valkey, stream) == list(range(5_000))
    marks = valkey.keys(f"*{stream}*spark*")
    assert [valkey.strlen(mark) for mark in marks] == [20, 20]
    assert all(0 < valkey.pttl(mark) <= 600_000 for mark in marks)


def test_an_envelope_from_spark_is_the_producers_byte_for_byte(spark, write, valkey, topic):
    rows = spark.createDataFrame(
        [('{"number":1,"text":"ü\\""}', "ä\\b", {"h": "1"}), ('{"number":2}', None, None)],
        "data string, key string, headers map<string,string>",
    )

    write(rows, topic=topic.name)

    found = 0
    for partition, stream in enumerate(streams_of(topic)):
        for _, fields in valkey.xrange(stream):
            document = json.loads(fields[b"data"])
            same = Envelope.of(document, topic=topic.name, partition=partition)
            assert fields[b"data"] == same.encode()
            found += 1
    assert found == 2


def test_rows_are_written_once_when_python_workers_are_killed(spark, valkey, valkey_url, topic):
    total = 300_000
    df = spark.range(0, total, 1, 2).select(F.col("id").alias("number"), F.lit("x" * 150).alias("pad"))

    def added() -> int:
        return sum(valkey.xlen(stream) for stream in streams_of(topic))

    with ThreadPoolExecutor() as pool:
        written = pool.submit(publish, df, url=valkey_url, topic=topic.name, key="number")
        eventually(lambda: added() > 5_000 or written.done(), every_s=0.001)
        for pid in pids_connected_to(valkey_url):
            os.kill(pid, signal.SIGKILL)
        at_kill = added()
        written.result()

    assert 5_000 < at_kill < total
    assert numbers_in(valkey, *streams_of(topic)) == list(range(total))


def test_rows_behind_a_shuffle_are_written_once_when_their_task_fails(spark, write, valkey, topic, tmp_path):
    flag = str(tmp_path / "failed")
    df = orders(spark, 20_000).repartition(2, "key")

    def fail_once(batches):
        for number, batch in enumerate(batches):
            if number == 1 and not os.path.exists(flag):
                Path(flag).touch()
                raise RuntimeError("the first attempt fails behind its first batch")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2000")
    try:
        write(df.mapInArrow(fail_once, df.schema), topic=topic.name)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert os.path.exists(flag)
    assert numbers_in(valkey, *streams_of(topic)) == list(range(20_000))


def test_a_named_write_that_is_run_again_adds_what_is_missing(spark, write, valkey, stream):
    df = orders(spark, 3_000).select("data")

    write(df.limit(2_000), stream=stream, dedupeId="load-2026-01-01")
    for tasks in (5, 1):
        write(df.repartition(tasks), stream=stream, dedupeId="load-2026-01-01")

    assert numbers_in(valkey, stream) == list(range(3_000))


def test_rows_without_a_key_are_spread_over_the_partitions(spark, write, valkey, topic):
    write(orders(spark, 3_000).select("data"), topic=topic.name)

    sizes = [valkey.xlen(stream) for stream in streams_of(topic)]
    assert sum(sizes) == 3_000
    assert min(sizes) > 800
    assert {envelope["key"] for envelope in envelopes_in(valkey, topic)} == {None}


def struct_of(schema: str) -> StructType:
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("number int", {"stream": "s"}, "writes the column `data`"),
        ("data int", {"stream": "s"}, "writes the column `data`"),
        ("data string, number int", {"stream": "s"}, "has no place for number"),
        ("data string", {"stream": "s", "dedupeColumn": "order"}, "no column 'order'"),
        ("data string", {"stream": "s", "dedupe": "twice"}, "dedupe must be one of rows, off, got 'twice'"),
        ("data string", {"stream": "s", "start": "0"}, "has no option start here"),
    ],
)
def test_what_cannot_be_written_is_named(spark, schema, options, message):
    source = RedisStreamSource({"url": "redis://localhost", **options})

    with pytest.raises((ValueError, TypeError), match=message):
        source.writer(struct_of(schema), overwrite=False)


def test_a_task_that_cannot_write_says_why(spark, write):
    df = spark.range(1).selectExpr("'{}' as data")

    with pytest.raises(
        PySparkException, match="topic 'never-created' is not there; `Topics\\.create` makes it"
    ):
        write(df, topic="never-created")


def test_a_stream_is_never_overwritten(spark):
    source = RedisStreamSource({"url": "redis://localhost", "stream": "s"})

    with pytest.raises(ValueError, match="only added to"):
        source.writer(struct_of("data string"), overwrite=True)
