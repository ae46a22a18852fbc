"""A Redis Cluster of three nodes: partitions on different nodes, read and written by the same tasks."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from pyspark.sql import functions as F  # noqa: N812

from conquiet import EmbeddedServer
from conquiet.mq import Topics
from conquiet.queue import open_client
from conquiet.spark import publish, unpack
from tests.with_spark.server_side import add_orders, numbers_in, streams_of
from tests.with_spark.test_sources import batch_numbers
from tests.with_spark.test_task_writer import DiedError, attempt_of
from tests.with_spark.test_task_writer import send as send_rows
from tests.with_spark.test_topic_column import send


@pytest.fixture(scope="module")
def cluster_url():
    with EmbeddedServer(cluster=3) as server:
        yield server.url


def test_a_topic_that_is_spread_over_nodes_is_written_and_read(spark, cluster_url):
    with open_client(cluster_url) as client:
        topic = Topics(client).create("orders", partitions=6)
        nodes = {
            client.get_node_from_key(topic.keys.stream(partition)).name for partition in topic.partitions
        }
        df = spark.range(0, 10_000, 1, 2).select(F.col("id").alias("number"))

        publish(df, url=cluster_url, topic="orders", key="number", options={"dedupeId": "once"})
        publish(df, url=cluster_url, topic="orders", key="number", options={"dedupeId": "once"})
        read = spark.read.format("redis-stream").options(url=cluster_url, topic="orders").load()
        rows = unpack(read, df.schema).collect()

        assert len(nodes) == 3
        assert sorted(row.number for row in rows) == list(range(10_000))
        sizes = [client.xlen(topic.keys.stream(partition)) for partition in topic.partitions]
        assert sum(sizes) == 10_000


def test_a_plain_stream_of_a_cluster_is_written_and_read(spark, cluster_url):
    df = spark.range(0, 1_000, 1, 2).select(F.col("id").alias("number"))

    publish(df, url=cluster_url, stream="plain")

    read = spark.read.format("redis-stream").options(url=cluster_url, stream="plain").load()
    assert sorted(json.loads(row.data)["number"] for row in read.collect()) == list(range(1_000))


def test_streams_of_all_nodes_are_found_by_a_pattern_and_rows_go_to_topics_on_all_of_them(cluster_url):
    with open_client(cluster_url) as client:
        streams = [f"found:{number}" for number in range(9)]
        for number, stream in enumerate(streams):
            add_orders(client, stream, range(number, number + 1))
        nodes = {client.get_node_from_key(stream).name for stream in streams}
        topics = [Topics(client).create(f"named-{number}", partitions=3) for number in range(2)]
        rows = [(topics[number % 2].name, number) for number in range(40)]
        attempt = attempt_of()

        with suppress(DiedError):
            send(cluster_url, rows, attempt, dies_after=20)
        send(cluster_url, rows, attempt)

        assert len(nodes) == 3
        assert batch_numbers(cluster_url, streamPattern="found:*") == list(range(9))
        assert numbers_in(client, *streams_of(topics[0])) == list(range(0, 40, 2))
        assert numbers_in(client, *streams_of(topics[1])) == list(range(1, 40, 2))


def test_ids_of_rows_without_a_key_are_known_though_the_topic_grows_between_two_attempts(cluster_url):
    with open_client(cluster_url) as client:
        Topics(client).create("growing", partitions=3)
        attempt = attempt_of()
        rows = [{"data": json.dumps({"number": n}), "order": str(n)} for n in range(200)]
        with pytest.raises(DiedError):
            send_rows(
                cluster_url, rows, attempt, topic="growing", dedupeColumn="order", size=50, dies_after=100
            )
        grown = Topics(client).grow("growing", 8)

        send_rows(cluster_url, rows, attempt, topic="growing", dedupeColumn="order")

        assert numbers_in(client, *streams_of(grown)) == list(range(200))


def test_ids_of_rows_without_a_key_are_known_though_a_rerun_has_other_payloads(cluster_url):
    with open_client(cluster_url) as client:
        topic = Topics(client).create("changed", partitions=6)
        for text in ("first", "again"):
            rows = [{"data": json.dumps({"number": n, "text": text}), "order": str(n)} for n in range(200)]
            send_rows(cluster_url, rows, attempt_of(), topic="changed", dedupeColumn="order")

        assert numbers_in(client, *streams_of(topic)) == list(range(200))
