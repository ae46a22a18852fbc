"""Micro-batches into a database: a transaction for each partition, each handled once."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException
from sqlalchemy import create_engine, text

from conquiet.spark import drain_batch
from tests.with_spark.server_side import add_orders, streams_of


def insert_numbers(rows, session):
    """The handler of these tests."""
    for row in rows:
        session.execute(text("INSERT INTO numbers VALUES (:number)"), json.loads(row["data"]))


def test_a_batch_that_is_run_again_changes_nothing(spark, valkey, valkey_url, topic, tmp_path):
    database = f"sqlite:///{tmp_path}/numbers.db?timeout=30"
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number INTEGER)"))
    for partition, stream in enumerate(streams_of(topic)):
        add_orders(valkey, stream, range(partition * 100, partition * 100 + 100))
    drain = drain_batch("tests.with_spark.test_drain_batch:insert_numbers", database, name="numbers")
    flag = tmp_path / "failed"

    def handle(df, batch_id):
        drain(df, batch_id)
        if not flag.exists():
            flag.touch()
            raise RuntimeError("dies after its transactions, before Spark knows")

    def run() -> None:
        source = spark.readStream.format("redis-stream").options(
            url=valkey_url, topic=topic.name, start="earliest"
        )
        query = source.load().writeStream.foreachBatch(handle)
        query = (
            query.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(PySparkException, match="before Spark knows"):
        run()
    run()

    with engine.connect() as connection:
        numbers = sorted(connection.execute(text("SELECT number FROM numbers")).scalars())
    assert numbers == list(range(300))


def test_a_failed_partition_leaves_nothing_behind(spark, valkey_url, valkey, stream, tmp_path, read):
    database = f"sqlite:///{tmp_path}/numbers.db?timeout=30"
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number INTEGER)"))
    add_orders(valkey, stream, range(100))

    def fail_at_the_end(rows, session):
        insert_numbers(rows, session)
        raise RuntimeError("not this time")

    with pytest.raises(PySparkException, match="not this time"):
        drain_batch(fail_at_the_end, database, name="n")(read(stream=stream), 0)
    drain_batch(insert_numbers, database, name="n")(read(stream=stream), 0)

    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM numbers")).scalar() == 100
