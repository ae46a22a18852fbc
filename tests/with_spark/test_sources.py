"""Several streams and topics in one query: by list and by pattern, each from a position of its own."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField

from conquiet.mq import Topics
from conquiet.spark.columns import SCHEMA
from conquiet.spark.options import ReadOptions
from conquiet.spark.read.batch_reader import StreamBatchReader
from conquiet.spark.read.stream_reader import StreamMicroBatchReader
from tests.with_spark.server_side import add_orders, streams_of

SEVERAL = type(SCHEMA)([StructField("topic", StringType()), *SCHEMA.fields])


def follow(url: str, **options: object) -> StreamMicroBatchReader:
    texts = {name: str(value) for name, value in options.items()}
    schema = SEVERAL if {"topics", "topicPattern"} & options.keys() else SCHEMA
    return StreamMicroBatchReader(ReadOptions.of({"url": url, **texts}), schema)


def next_end(reader: StreamMicroBatchReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def rows_between(reader: StreamMicroBatchReader, start, end) -> list[dict[str, Any]]:
    splits = reader.partitions(start, end)
    return [row for split in splits for batch in reader.read(split) for row in batch.to_pylist()]


def numbers_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(json.loads(row["data"])["number"] for row in rows)


def batch_numbers(url: str, **options: object) -> list[int]:
    texts = {name: str(value) for name, value in options.items()}
    reader = StreamBatchReader(ReadOptions.of({"url": url, **texts}), SCHEMA)
    return numbers_of(
        [row for split in reader.partitions() for batch in reader.read(split) for row in batch.to_pylist()]
    )


def test_streams_are_read_by_list_and_by_pattern(valkey, valkey_url, stream):
    add_orders(valkey, f"{stream}:a", range(10))
    add_orders(valkey, f"{stream}:b", range(10, 15))
    valkey.set(f"{stream}:c", "no stream")

    assert batch_numbers(valkey_url, streams=f"{stream}:a, {stream}:b") == list(range(15))
    assert batch_numbers(valkey_url, streamPattern=f"{stream}:*") == list(range(15))


def test_a_stream_that_begins_to_match_is_read_from_its_beginning(valkey, valkey_url, stream):
    add_orders(valkey, f"{stream}:a", range(10))
    reader = follow(valkey_url, streamPattern=f"{stream}:*", start="latest", discoveryIntervalMs=0)
    start = reader.initialOffset()
    add_orders(valkey, f"{stream}:b", range(10, 15))

    end = next_end(reader, start)

    assert numbers_of(rows_between(reader, start, end)) == list(range(10, 15))
    # Of a batch that is run again by another planner, too, and nothing of it is in the next one.
    again = follow(valkey_url, streamPattern=f"{stream}:*", start="latest")
    add_orders(valkey, f"{stream}:c", range(15, 17))
    assert numbers_of(rows_between(again, start, end)) == list(range(10, 15))
    assert numbers_of(rows_between(again, end, next_end(again, end))) == [15, 16]


def test_topics_are_read_by_list_and_by_pattern_with_the_column_topic(valkey, valkey_url):
    name = f"test-{uuid.uuid4().hex[:12]}"
    first, second = (Topics(valkey).create(f"{name}-{letter}", partitions=2) for letter in "ab")
    for index, topic in enumerate((first, second)):
        for stream in streams_of(topic):
            add_orders(valkey, stream, range(index * 10, index * 10 + 3))
    reader = follow(valkey_url, topicPattern=f"{name}-*", start="earliest")
    start = reader.initialOffset()
    end = next_end(reader, start)

    rows = rows_between(reader, start, end)

    assert sorted({(row["topic"], row["partition"]) for row in rows}) == [
        (topic.name, partition) for topic in (first, second) for partition in (0, 1)
    ]
    third = Topics(valkey).create(f"{name}-c", partitions=1)
    add_orders(valkey, streams_of(third)[0], range(30, 32))
    assert numbers_of(rows_between(reader, end, next_end(reader, end))) == [30, 31]
    listed = follow(valkey_url, topics=f"{name}-a,{name}-c", start="earliest")
    begin = listed.initialOffset()
    assert len(rows_between(listed, begin, next_end(listed, begin))) == 8


def test_each_partition_begins_and_ends_at_a_position_of_its_own(valkey, valkey_url, topic):
    ids = [
        add_orders(valkey, stream, range(index * 10, index * 10 + 5))
        for index, stream in enumerate(streams_of(topic))
    ]
    valkey.xgroup_create(streams_of(topic)[1], "billing", id=ids[1][1])
    positions = {"0": ids[0][3], "1": "group:billing", "*": "latest"}
    by_name = {topic.name: {"0": ids[0][0], "1": "group:billing", "*": "earliest"}}

    reader = follow(valkey_url, topic=topic.name, start=json.dumps(positions))
    start = reader.initialOffset()
    rows = rows_between(reader, start, next_end(reader, start))

    assert numbers_of(rows) == [3, 4, 12, 13, 14]
    assert batch_numbers(valkey_url, topic=topic.name, end=json.dumps(by_name)) == [0, 10, 11]
    assert batch_numbers(valkey_url, topic=topic.name, start=json.dumps(positions)) == [3, 4, 12, 13, 14]
    assert batch_numbers(valkey_url, stream=streams_of(topic)[1], start="group:billing") == [12, 13, 14]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ('{"7": "earliest"}', "start names 7, which is not read here"),
        ('{"0": "yesterday"}', "start must be an entry id"),
        ('{"0": 5}', "start must have a text"),
        ('{"0"', "start is not JSON"),
        ("group:", "must name a group"),
    ],
)
def test_a_wrong_position_is_named(valkey_url, topic, start, message):
    with pytest.raises((TypeError, ValueError), match=message):
        follow(valkey_url, topic=topic.name, start=start).initialOffset()


def test_a_stream_that_is_no_longer_read_is_reported(valkey, valkey_url, stream):
    for letter in "ab":
        add_orders(valkey, f"{stream}:{letter}", range(5))
    reader = follow(valkey_url, streams=f"{stream}:a,{stream}:b", start="earliest")
    end = next_end(reader, reader.initialOffset())
    add_orders(valkey, f"{stream}:a", range(5, 7))

    fewer = {"streams": f"{stream}:a", "start": "earliest"}
    with pytest.raises(Exception, match=f"has offsets of {stream}:b, which the options do not name"):
        next_end(follow(valkey_url, **fewer), end)
    careless = follow(valkey_url, **fewer, failOnDataLoss="false")

    assert numbers_of(rows_between(careless, end, next_end(careless, end))) == [5, 6]
    # With none of its offsets everything would be read anew, without a word.
    with pytest.raises(Exception, match="has offsets of"):
        next_end(follow(valkey_url, stream=f"{stream}:a", failOnDataLoss="false"), end)


def test_a_micro_batch_waits_for_a_number_of_entries_or_for_a_time(valkey, valkey_url, stream):
    add_orders(valkey, stream, range(5))
    options = {"stream": stream, "start": "earliest", "minOffsetsPerTrigger": 10}
    patient, hasty = follow(valkey_url, **options), follow(valkey_url, **options, maxTriggerDelayMs=0)
    start = patient.initialOffset()

    assert next_end(patient, start) == start
    assert numbers_of(rows_between(hasty, start, next_end(hasty, start))) == list(range(5))
    add_orders(valkey, stream, range(5, 10))
    end = next_end(patient, start)
    assert numbers_of(rows_between(patient, start, end)) == list(range(10))
    assert next_end(patient, end) == end
    # A query that ends with what is there waits for nothing.
    add_orders(valkey, stream, range(10, 12))
    patient.prepareForTriggerAvailableNow()
    assert numbers_of(rows_between(patient, end, next_end(patient, end))) == [10, 11]


def test_so_many_tasks_as_are_asked_for_read_a_stream(valkey, valkey_url, stream):
    add_orders(valkey, stream, range(2_000))
    options = {"url": valkey_url, "stream": stream, "minPartitions": "8"}

    splits = StreamBatchReader(ReadOptions.of(options), SCHEMA).partitions()
    reader = follow(valkey_url, stream=stream, start="earliest", minPartitions=8)
    start = reader.initialOffset()

    assert 6 <= len(splits) <= 12
    assert 6 <= len(reader.partitions(start, next_end(reader, start))) <= 12
    assert batch_numbers(valkey_url, stream=stream, minPartitions=8) == list(range(2_000))


def test_progress_says_what_is_behind_a_micro_batch(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(100))
    reader = follow(valkey_url, stream=stream, start="earliest", maxOffsetsPerTrigger=30)
    next_end(reader, reader.initialOffset())

    report = reader.reportLatestOffset()

    assert report is not None
    assert (report["0"]["last"], report["0"]["rowsBehind"]) == (ids[-1], 70)
    totals = report["conquiet"]
    assert (totals["rowsBehind"], totals["maxRowsBehind"], totals["retries"]) == (70, 70, 0)
    assert totals["bytesBehind"] > 70
    assert 0 <= totals["oldestAgeMs"] < 3_600_000
    assert (totals["from"], totals["server"]) == (stream, valkey_url)


def test_the_server_is_named_without_secrets():
    from conquiet.spark.read.stream_reader import server_without_secrets

    url = "rediss://someone:a-p@ss:w/rd@redis.example.com:6380/2?password=another&ssl_cert_reqs=none"
    assert server_without_secrets(url) == "rediss://redis.example.com:6380/2"


def test_metrics_of_a_query_are_those_of_its_progress(spark, valkey, valkey_url, stream, tmp_path):
    from prometheus_client import REGISTRY

    from conquiet.spark import QueryMetrics, source_backlogs
    from tests.eventually import eventually

    add_orders(valkey, stream, range(100))
    listener, labels = QueryMetrics(), {"query": f"copy-{stream}", "source": f"{stream}@{valkey_url}"}
    spark.streams.addListener(listener)
    try:
        source = spark.readStream.format("redis-stream").options(
            url=valkey_url, stream=stream, start="earliest"
        )
        query = source.option("maxOffsetsPerTrigger", 40).load().select("data").writeStream
        query = query.format("redis-stream").options(url=valkey_url, stream=f"{stream}-copy")
        query = query.queryName(labels["query"]).option("checkpointLocation", str(tmp_path / "query"))
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()

        by_query = {"query": labels["query"]}
        total = "conquiet_spark_input_rows_total"
        eventually(lambda: REGISTRY.get_sample_value("conquiet_spark_query_active", by_query) == 0)
        assert REGISTRY.get_sample_value(total, by_query) == 100
        assert REGISTRY.get_sample_value("conquiet_spark_retries_total", labels) == 0
        backlogs = [backlog for progress in query.recentProgress for backlog in source_backlogs(progress)]
        assert [backlog.rows_behind for backlog in backlogs][:3] == [60, 20, 0]
        assert {(backlog.place, backlog.server) for backlog in backlogs} == {(stream, valkey_url)}
    finally:
        spark.streams.removeListener(listener)


def test_a_query_that_was_started_before_it_is_listened_to_has_its_name_until_it_ends():
    from types import SimpleNamespace

    from prometheus_client import REGISTRY

    from conquiet.spark import QueryMetrics

    listener: Any = QueryMetrics()
    query_id, labels = uuid.uuid4(), {"query": f"late-{uuid.uuid4().hex}"}
    progress = SimpleNamespace(
        id=query_id, name=labels["query"], numInputRows=5, batchDuration=10, sources=[]
    )

    listener.onQueryProgress(SimpleNamespace(progress=progress))
    assert REGISTRY.get_sample_value("conquiet_spark_query_active", labels) == 1
    listener.onQueryTerminated(SimpleNamespace(id=query_id, exception="as if it had died"))

    assert REGISTRY.get_sample_value("conquiet_spark_query_active", labels) == 0
    assert REGISTRY.get_sample_value("conquiet_spark_query_failures_total", labels) == 1


def test_gauges_of_a_query_are_shown_while_it_runs_and_by_server():
    from types import SimpleNamespace

    from prometheus_client import REGISTRY

    from conquiet.spark import QueryMetrics

    listener: Any = QueryMetrics()
    query, query_id = f"copy-{uuid.uuid4().hex}", uuid.uuid4()
    totals = {"rowsBehind": 7, "maxRowsBehind": 7, "oldestAgeMs": 500, "bytesBehind": 90, "retries": 0}
    servers = ["redis://one:6379/0", "redis://other:6379/0"]
    reports = [{"conquiet": totals | {"from": "orders", "server": server}} for server in servers]
    progress = SimpleNamespace(
        id=query_id,
        name=query,
        numInputRows=5,
        batchDuration=10,
        sources=[SimpleNamespace(latestOffset=json.dumps(report)) for report in reports],
    )

    def shown() -> list[float | None]:
        labels = [{"query": query, "source": f"orders@{server}"} for server in servers]
        return [REGISTRY.get_sample_value("conquiet_spark_rows_behind", one) for one in labels]

    for _ in range(2):
        listener.onQueryProgress(SimpleNamespace(progress=progress))
        assert shown() == [7, 7]
        listener.onQueryTerminated(SimpleNamespace(id=query_id, exception=None))
        assert shown() == [None, None]
