"""Batch reads: every entry of a range in exactly one task, as columns."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException

from conquiet.mq import Message, Producer
from conquiet.spark import RedisStreamSource, register
from conquiet.spark.columns import SCHEMA
from conquiet.spark.errors import DataLossError
from conquiet.spark.options import ReadOptions
from conquiet.spark.read.batch_reader import StreamBatchReader
from tests.with_spark.server_side import add_orders, add_orders_evenly


def numbers_of(df) -> list[int]:
    return sorted(json.loads(row.data)["number"] for row in df.select("data").collect())


def test_a_stream_is_read_with_all_its_columns_without_any_registration(read, valkey, stream):
    [entry_id] = add_orders(valkey, stream, range(1))

    [row] = read(stream=stream).collect()

    added = datetime.fromtimestamp(int(entry_id.split("-")[0]) / 1000, UTC)
    assert row.asDict() == {
        "stream": stream,
        "partition": 0,
        "id": entry_id,
        "timestamp": added.replace(tzinfo=None),
        "key": None,
        "headers": None,
        "data": '{"number": 0}',
    }


def test_a_topics_messages_have_key_headers_and_payload(read, valkey, topic):
    Producer(valkey).send_many(
        topic.name,
        [Message(payload={"number": n}, key=f"ü{n}", headers={"n": str(n)}) for n in range(100)],
    )

    rows = read(topic=topic.name).collect()

    found = {json.loads(row.data)["number"]: (row.key, row.headers) for row in rows}
    assert found == {n: (f"ü{n}", {"n": str(n)}) for n in range(100)}
    assert {row.stream for row in rows} == {topic.keys.stream(partition) for partition in topic.partitions}


def test_many_tasks_read_one_stream_and_each_entry_once(read, valkey, stream):
    add_orders_evenly(valkey, stream, 20_000)

    df = read(stream=stream, rowsPerSplit=2_000)

    sizes = df.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert numbers_of(df) == list(range(20_000))
    assert len(sizes) >= 8
    assert max(sizes) < 4_000


def test_a_stream_that_is_not_there_has_no_rows(read, stream):
    assert read(stream=stream).count() == 0


def test_start_and_end_are_ids_or_times_and_both_included(read, valkey, stream):
    for second in range(10):
        valkey.xadd(
            stream, {"data": json.dumps({"number": second})}, id=f"{1_700_000_000_000 + second * 1_000}-7"
        )

    by_id = read(stream=stream, start="1700000003000-7", end="1700000006000-6")
    by_ms = read(stream=stream, start=1_700_000_003_000, end=1_700_000_006_000)
    by_time = read(stream=stream, start="2023-11-14T22:13:23Z", end="2023-11-14T22:13:26+00:00")

    assert numbers_of(by_id) == [3, 4, 5]
    assert numbers_of(by_ms) == [3, 4, 5, 6]
    assert numbers_of(by_time) == [3, 4, 5, 6]


def test_a_schema_leaves_columns_out(spark, valkey, valkey_url, topic):
    Producer(valkey).send(topic.name, {"number": 1}, key="a")
    reader = spark.read.format("redis-stream").options(url=valkey_url, topic=topic.name)

    rows = reader.schema("key string, id string").load().collect()

    assert [tuple(row.asDict()) for row in rows] == [("key", "id")]
    assert rows[0].key == "a"
    with pytest.raises(PySparkException, match="no column 'number' of type int"):
        reader.schema("number int").load().collect()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("id = '1700000003000-7'", [3]),
        ("id in ('1700000003000-7', '1700000005000-7', 'x')", [3, 5]),
        ("id >= '1700000003000-7' and id < '1700000006000-7'", [3, 4, 5]),
        ("timestamp > timestamp'2023-11-14T22:13:23Z'", [4, 5, 6, 7, 8, 9]),
        ("timestamp between timestamp'2023-11-14T22:13:23Z' and timestamp'2023-11-14T22:13:24.5Z'", [3, 4]),
    ],
)
def test_conditions_give_the_same_rows_with_and_without_push_down(
    spark, read, valkey, stream, condition, expected
):
    for second in range(10):
        valkey.xadd(
            stream, {"data": json.dumps({"number": second})}, id=f"{1_700_000_000_000 + second * 1_000}-7"
        )
    register(spark)
    with_push_down = numbers_of(read(stream=stream).where(condition))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")

    without = numbers_of(read(stream=stream).where(condition))

    assert with_push_down == without == expected


def test_ids_of_other_lengths_are_compared_as_text_all_the_same(spark, read, valkey, stream):
    for entry_id in ("5-1", "1700000000000-1"):
        valkey.xadd(stream, {"data": '{"number":1}'}, id=entry_id)
    register(spark)

    rows = read(stream=stream).where("id > '1700000000000-0'").collect()

    assert [row.id for row in rows] == ["5-1", "1700000000000-1"]


def test_push_down_narrows_what_is_planned(valkey, valkey_url, topic):
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

    for partition in topic.partitions:
        for second in range(10):
            entry_id = f"{1_700_000_000_000 + second * 1_000}-0"
            valkey.xadd(topic.keys.stream(partition), {"data": "{}"}, id=entry_id)
    reader = StreamBatchReader(ReadOptions.of({"url": valkey_url, "topic": topic.name}), SCHEMA)

    reader.pushFilters(
        [
            EqualTo(("partition",), 1),
            GreaterThanOrEqual(("timestamp",), datetime(2023, 11, 14, 22, 13, 25, tzinfo=UTC)),
        ]
    )

    splits: list[Any] = list(reader.partitions())
    [split] = splits
    assert (split.partition, split.first, split.last) == (1, "1700000005000-0", "1700000009000-0")


def test_a_range_that_was_trimmed_after_planning_is_reported_with_its_gap(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(1_000))
    reader = StreamBatchReader(ReadOptions.of({"url": valkey_url, "stream": stream}), SCHEMA)
    [split] = reader.partitions()
    valkey.xtrim(stream, minid=ids[600], approximate=False)

    with pytest.raises(Exception, match=f"before {ids[600]} were trimmed"):
        list(reader.read(split))

    options = ReadOptions.of({"url": valkey_url, "stream": stream, "failOnDataLoss": "false"})
    rows = sum(batch.num_rows for batch in StreamBatchReader(options, SCHEMA).read(split))
    assert rows == 400


def test_a_stream_that_is_trimmed_while_it_is_read_is_reported(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(5_000), pad="x" * 4_000)
    reader = StreamBatchReader(ReadOptions.of({"url": valkey_url, "stream": stream}), SCHEMA)
    [split] = reader.partitions()
    batches = reader.read(split)
    next(batches)
    valkey.xtrim(stream, minid=ids[4_990], approximate=False)

    with pytest.raises(Exception, match=f"before {ids[4_990]} were trimmed"):
        list(batches)


def test_entries_that_were_trimmed_behind_a_groups_position_are_reported(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(20))
    valkey.xgroup_create(stream, "billing", ids[4])
    valkey.xtrim(stream, minid=ids[8], approximate=False)
    options = {"url": valkey_url, "stream": stream, "start": "group:billing"}

    with pytest.raises(DataLossError, match="may have been trimmed"):
        StreamBatchReader(ReadOptions.of(options), SCHEMA).partitions()

    careless = StreamBatchReader(ReadOptions.of(options | {"failOnDataLoss": "false"}), SCHEMA)
    assert sum(batch.num_rows for split in careless.partitions() for batch in careless.read(split)) == 12


def test_a_malformed_entry_fails_the_read_by_name(read, valkey, stream):
    add_orders(valkey, stream, range(3))
    entry_id = valkey.xadd(stream, {"other": "1"}).decode()

    with pytest.raises(PySparkException, match=f"stream '{stream}' failed: entry {entry_id} is malformed"):
        read(stream=stream).collect()


@pytest.mark.parametrize(
    "fields",
    [{"other": "1"}, {"data": "{}", "more": "1"}, {"data": "[1]"}, {"data": b"\xff{}"}, {"data": ""}],
)
def test_a_malformed_entry_that_is_kept_does_not_disturb_other_entries(valkey, valkey_url, stream, fields):
    add_orders(valkey, stream, range(3))
    entry_id = valkey.xadd(stream, fields).decode()
    add_orders(valkey, stream, range(3, 6))
    options = ReadOptions.of({"url": valkey_url, "stream": stream, "malformed": "keep"})
    reader = StreamBatchReader(options, SCHEMA)

    rows = [row for split in reader.partitions() for batch in reader.read(split) for row in batch.to_pylist()]

    assert [json.loads(row["data"])["number"] for row in rows if row["data"]] == list(range(6))
    [kept] = [row for row in rows if row["data"] is None]
    assert kept["id"] == entry_id
    assert [name for name, _ in kept["headers"]] == ["conquiet-malformed", "conquiet-fields"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "a", "topic": "b"}, "either stream or topic"),
        ({}, "either stream or topic"),
        ({"stream": "a", "strat": "1"}, "has no option strat here, only url, stream"),
        ({"stream": "a", "start": "yesterday"}, "start must be an entry id"),
        ({"stream": "a", "malformed": "drop"}, "malformed must be one of fail, keep, got 'drop'"),
        ({"stream": "a", "rowsPerSplit": "0"}, "rowsPerSplit must be a positive int"),
        ({"stream": "a", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streaming queries"),
    ],
)
def test_a_wrong_option_is_named(options, message):
    source = RedisStreamSource({"url": "redis://localhost", **options})

    with pytest.raises(ValueError, match=message):
        source.reader(SCHEMA)


def test_a_topic_that_is_not_there_is_named(read):
    with pytest.raises(PySparkException, match="topic 'never-created' is not there"):
        read(topic="never-created").collect()


def test_a_worker_holds_a_bounded_part_of_a_large_stream(valkey, valkey_url, stream):
    pipeline = valkey.pipeline(transaction=False)
    for _ in range(400):
        pipeline.xadd(stream, {"data": json.dumps({"text": "x" * 100_000})})
    pipeline.execute()
    reader = StreamBatchReader(ReadOptions.of({"url": valkey_url, "stream": stream}), SCHEMA)

    sizes = [batch.nbytes for split in reader.partitions() for batch in reader.read(split)]

    assert sum(sizes) > 40_000_000
    assert max(sizes) < 5_000_000
