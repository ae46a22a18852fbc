"""Rows that name their topic: each goes there once, whatever happens to the tasks."""

from __future__ import annotations

import json
import uuid

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from conquiet.mq import Topic, Topics
from conquiet.spark.errors import RowsDifferError
from conquiet.spark.options import WriteOptions
from conquiet.spark.outages import Patience
from conquiet.spark.write.topics_writer import TopicsWriter
from tests.with_spark.server_side import numbers_in, streams_of
from tests.with_spark.test_task_writer import DiedError, attempt_of


@pytest.fixture
def topics(valkey) -> list[Topic]:
    name = uuid.uuid4().hex[:12]
    return [Topics(valkey).create(f"test-{name}-{number}", partitions=2) for number in range(2)]


def send(url: str, rows: list[tuple[str, int]], attempt, dies_after: int | None = None) -> TopicsWriter:
    options = WriteOptions.of({"url": url})
    with (
        options.address.connect() as client,
        TopicsWriter(client, options, attempt, Patience(1_000)) as writer,
    ):
        for index in range(0, len(rows), 10):
            if dies_after is not None and index >= dies_after:
                raise DiedError
            some = rows[index : index + 10]
            columns = {"topic": [topic for topic, _ in some]}
            writer.add(
                pa.RecordBatch.from_pydict(columns | {"data": [json.dumps({"number": n}) for _, n in some]})
            )
        writer.finish()
    return writer


def test_each_row_goes_to_its_topic_once_however_often_the_task_is_tried(valkey, valkey_url, topics):
    rows = [(topics[number % 2].name, number) for number in range(60)]
    attempt = attempt_of()

    for dies_after in (20, 50, None):
        try:
            send(valkey_url, rows, attempt, dies_after)
        except DiedError:
            continue

    assert numbers_in(valkey, *streams_of(topics[0])) == list(range(0, 60, 2))
    assert numbers_in(valkey, *streams_of(topics[1])) == list(range(1, 60, 2))


def test_an_attempt_whose_other_rows_belong_to_another_topic_is_refused(valkey_url, topics):
    attempt = attempt_of()
    with pytest.raises(DiedError):
        send(valkey_url, [(topics[0].name, number) for number in range(20)], attempt, dies_after=10)

    with pytest.raises(RowsDifferError, match="has no rows for"):
        send(valkey_url, [(topics[1].name, number) for number in range(20)], attempt)


def test_spark_writes_each_row_to_its_topic_and_a_named_write_again_adds_nothing(
    spark, write, valkey, topics
):
    names = ", ".join(f"'{topic.name}'" for topic in topics)
    df = spark.range(0, 1_000, 1, 3).selectExpr(
        f"element_at(array({names}), cast(id % 2 + 1 AS int)) AS topic",
        "to_json(named_struct('number', id)) AS data",
        "cast(id % 5 AS string) AS key",
    )

    write(df, dedupeId=f"once-{topics[0].name}")
    write(df.repartition(5), dedupeId=f"once-{topics[0].name}")
    with pytest.raises(PySparkException, match="has no rows for"):
        write(df.where(f"topic = '{topics[0].name}'"), dedupeId=f"once-{topics[0].name}")

    assert numbers_in(valkey, *streams_of(topics[0])) == list(range(0, 1_000, 2))
    assert numbers_in(valkey, *streams_of(topics[1])) == list(range(1, 1_000, 2))


def test_a_row_without_a_topic_and_a_topic_that_is_not_there_fail_the_write(spark, write):
    with pytest.raises(PySparkException, match="null as its topic"):
        write(spark.sql("SELECT cast(NULL AS string) AS topic, '{}' AS data"))
    with pytest.raises(PySparkException, match="topic 'never-created' is not there"):
        write(spark.sql("SELECT 'never-created' AS topic, '{}' AS data"))
