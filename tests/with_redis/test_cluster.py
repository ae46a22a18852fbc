"""The core on a real cluster of three nodes."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import redis
from redis.cluster import ClusterNode, RedisCluster
from sqlalchemy import insert, select

from conquiet import (
    AsyncQueue,
    DrainLimits,
    EmbeddedServer,
    Inbox,
    MalformedEntryError,
    NotReplicatedError,
    Outbox,
    OutboxRelay,
    QueueConfig,
    QueueConsumer,
    QueueError,
    RedisStreamsQueue,
    StreamWriter,
    drain,
    drain_stale,
)
from conquiet.consume import dead_letter_stream
from conquiet.db import DbSession
from conquiet.mq import AsyncProducer, Topics
from conquiet.queue.connection import open_async_client, open_client
from tests.awaited import Awaited, EventLoop
from tests.conftest import effects
from tests.eventually import eventually
from tests.services import free_port

GROUP = "billing"


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedServer(cluster=3) as server:
        yield server


@pytest.fixture
def streams():
    """Names that fall on different nodes, most likely on all three."""
    prefix = uuid.uuid4().hex[:8]
    return [f"{prefix}:{n}" for n in range(12)]


def open_queue(cluster, stream, consumer="worker-1"):
    return RedisStreamsQueue.from_url(cluster.url, QueueConfig(stream, GROUP, consumer, block_ms=50))


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": msg.stream})


def test_streams_on_every_node_are_drained(cluster, streams, engine):
    ids = set()
    nodes = set()
    for stream in streams:
        with open_queue(cluster, stream) as queue:
            ids |= set(queue.enqueue_many([{"n": n} for n in range(30)]))
            nodes.add(queue.client.get_node_from_key(stream).port)

            report = drain(
                queue, write_effect, engine, DrainLimits(max_messages=100, idle_ms=30), inbox=Inbox()
            )

            assert report.handled == 30
            assert queue.backlog_stats().pending == queue.backlog_stats().lag == 0

    with engine.connect() as connection:
        assert set(connection.scalars(select(effects.c.entry_id))) == ids
    assert len(nodes) == 3


def test_the_loop_acks_and_reads_in_one_round_trip(cluster, streams, engine):
    with open_queue(cluster, streams[0]) as queue:
        queue.enqueue_many([{"n": n} for n in range(20)])
        consumer = QueueConsumer(queue)

        def handler(msg, session):
            write_effect(msg, session)
            if msg.payload["n"] == 19:
                consumer.stop()

        consumer.run(handler=handler, engine=engine)

        assert queue.backlog_stats().pending == 0


def test_recovery_hand_back_and_dead_letters(cluster, streams, engine):
    stream = streams[0]
    with open_queue(cluster, stream, "dead") as dead, open_queue(cluster, stream) as queue:
        ids = dead.enqueue_many([{"n": n} for n in range(3)])
        messages = dead.read(50, count=3)
        dead.client.xclaim(stream, GROUP, "dead", 0, [ids[0]], retrycount=9)
        assert dead.hand_back(messages[1:]) == messages[1:]

        report = drain_stale(
            queue, write_effect, engine, DrainLimits(max_messages=10, max_deliveries=5), min_idle_ms=0
        )

        assert (report.handled, report.dead_lettered) == (2, 1)
        assert queue.client.xlen(dead_letter_stream(stream)) == 1


def test_malformed_entries_are_visible(cluster, streams):
    with open_queue(cluster, streams[0]) as queue:
        queue.client.xadd(streams[0], {"data": b"\xff"})

        for call in (lambda: queue.read(50), lambda: queue.claim_stale(0)):
            with pytest.raises(MalformedEntryError, match="not UTF-8"):
                call()


@pytest.mark.parametrize("settings", [{}, {"protocol": 2}, {"protocol": 3}, {"decode_responses": True}])
def test_a_cluster_client_that_was_handed_in(cluster, streams, settings):
    client = RedisCluster(host="127.0.0.1", port=cluster.port, **settings)
    queue = RedisStreamsQueue(client, QueueConfig(streams[0], GROUP, "worker-1", block_ms=50))
    ids = queue.enqueue_many([{"n": n} for n in range(3)])

    first, second = queue.read(50, count=2)
    (third,) = queue.ack_and_read([first.id], 50)

    assert [first.id, second.id, third.id] == ids
    assert [msg.id for msg in queue.claim_stale(0)] == ids[1:]
    assert queue.backlog_stats().lag == 0
    client.close()


def test_the_relay_publishes_to_streams_on_every_node(cluster, streams, engine):
    outbox = Outbox()
    outbox.create_table(engine)
    with DbSession(engine) as session:
        for stream in streams:
            outbox.enqueue(session, stream, {"stream": stream})
    client = RedisCluster(host="127.0.0.1", port=cluster.port)

    assert OutboxRelay(engine, client).relay() == len(streams)

    assert [client.xlen(stream) for stream in streams] == [1] * len(streams)
    client.close()


def test_a_queue_that_is_closed_opens_no_connection_to_any_node(cluster, streams):
    queue = open_queue(cluster, streams[0])
    queue.enqueue({"n": 1})

    queue.close()

    with pytest.raises(QueueError, match="it is closed"):
        queue.enqueue({"n": 2})
    with pytest.raises(QueueError, match="it is closed"):
        queue.read(10)
    queue.close()


def test_a_cluster_that_is_unavailable_is_a_queue_error():
    with pytest.raises(QueueError) as caught:
        RedisStreamsQueue.from_url("redis+cluster://127.0.0.1:1", QueueConfig("orders", GROUP, "worker-1"))

    assert isinstance(caught.value.__cause__, redis.exceptions.RedisClusterException | redis.RedisError)


@pytest.mark.parametrize("work", ["send", "send_many", "read", "ack_and_read"])
def test_streams_of_other_nodes_go_on_when_a_node_has_died(work, streams):
    """redis-py asks one node which keys a command has, whatever became of that node."""
    with EmbeddedServer(cluster=3) as cluster, open_client(cluster.url) as client:
        dying = client.get_default_node()
        stream = next(one for one in streams if client.get_node_from_key(one) != dying)
        for node in client.get_nodes():
            node.redis_connection.config_set("cluster-require-full-coverage", "no")
        writer = StreamWriter(client, stream)
        queue = RedisStreamsQueue(client, QueueConfig(stream, GROUP, "worker-1", block_ms=50))
        first = writer.enqueue({"n": 0})
        queue.read(50)
        os.kill(dying.redis_connection.info("server")["process_id"], signal.SIGKILL)

        def goes_on() -> bool:
            # As after a pause.
            writer.ends._known[stream].next_check = 0.0
            with suppress(QueueError):
                if work == "send":
                    return bool(writer.enqueue({"n": 1}))
                if work == "send_many":
                    return bool(writer.enqueue_many([{"n": 1}, {"n": 2}]))
                if work == "read":
                    client.xadd(stream, {"data": "{}"})
                    return bool(queue.read(50))
                return queue.ack_and_read([first], 10, 1) is not None
            return False

        eventually(goes_on)


@contextmanager
def replica_of(primary: ClusterNode) -> Iterator[redis.Redis]:
    """A fourth node, which follows this one."""
    port = next(port for port in iter(free_port, None) if port < 55_000)
    with (
        EmbeddedServer(port=port, args=["--cluster-enabled", "yes"]) as server,
        redis.Redis.from_url(server.url) as replica,
    ):
        replica.execute_command("CLUSTER MEET", primary.host, primary.port)
        node_id = primary.redis_connection.execute_command("CLUSTER MYID")

        def follows() -> bool:
            with suppress(redis.ResponseError):
                replica.execute_command("CLUSTER REPLICATE", node_id)
            states = primary.redis_connection.info("replication").get("slave0", {})
            return states.get("state") == "online" and replica.info("replication")["role"] == "slave"

        eventually(follows)
        yield replica


@pytest.mark.parametrize("work", ["relay", "enqueue"])
def test_after_a_failover_what_waits_for_replicas_finds_the_new_primary(work, streams, engine):
    outbox, stream = Outbox(), streams[0]
    outbox.create_table(engine)
    with DbSession(engine) as session:
        outbox.enqueue(session, stream, {"n": 1})
    with EmbeddedServer(cluster=3) as cluster, open_client(cluster.url) as client:
        primary = client.get_node_from_key(stream)
        with replica_of(primary) as replica:
            # Nothing was sent before: only what asks for replicas meets the old primary.
            relay = OutboxRelay(engine, client, outbox, min_replicas=1)
            writer = StreamWriter(client, stream, min_replicas=1)
            os.kill(primary.redis_connection.info("server")["process_id"], signal.SIGKILL)
            replica.execute_command("CLUSTER FAILOVER", "TAKEOVER")

            def is_at_the_new_one() -> bool:
                try:
                    relay.relay() if work == "relay" else writer.enqueue({"n": 1})
                except NotReplicatedError as error:
                    # The new primary has no replica.
                    return error.confirmed == 0
                except QueueError:
                    return False
                return False

            eventually(is_at_the_new_one)
            assert replica.xlen(stream) == (0 if work == "relay" else 1)


def test_an_event_loop_sends_to_streams_and_topics_of_every_node(cluster, streams):
    client, name = open_client(cluster.url), f"orders-{uuid.uuid4().hex[:8]}"
    topic = Topics(client).create(name, 3)
    with EventLoop() as loop:
        awaiting = open_async_client(cluster.url)
        for stream in streams:
            Awaited(AsyncQueue(awaiting, stream), loop).enqueue_many([{"n": n} for n in range(5)])
        producer = Awaited(AsyncProducer(awaiting), loop)
        ids = producer.send_many(name, [{"n": n} for n in range(30)])
        first = producer.send(name, {}, key="a", dedupe_id="d")
        again = producer.send(name, {}, key="a", dedupe_id="d")
        loop.run(awaiting.aclose())

    assert [client.xlen(stream) for stream in streams] == [5] * len(streams)
    assert sum(client.xlen(topic.keys.stream(partition)) for partition in topic.partitions) == len(ids) + 1
    assert again == first
    client.close()
