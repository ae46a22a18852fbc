"""A Redis Cluster of three nodes: partitions on different nodes, read and written by the same tasks."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F  # noqa: N812

from conquiet import EmbeddedServer
from conquiet.mq import Topics
from conquiet.queue import open_client
from conquiet.spark import publish, unpack


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
