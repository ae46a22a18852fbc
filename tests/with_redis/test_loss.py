"""After a failover to a replica that lagged, producers and consumers report what they know to be lost."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import pytest
import redis

from conquiet import (
    ConquietError,
    DrainLimits,
    EmbeddedServer,
    QueueConfig,
    RedisStreamsQueue,
    StreamWriter,
    drain,
)
from conquiet.mq import ConsumerConfig, Message, PartitionConsumer, Producer, Topics, drain_topic
from conquiet.operations import diagnose, topic_facts
from conquiet.queue import ends, entry_id_order, open_client
from conquiet.queue.ends import EndWatch, deleted_streams_key, end_mark
from tests.eventually import HANG_S, eventually
from tests.services import redis_binary, unavailable
from tests.with_redis.full_server import fill, server_of_its_own
from tests.with_redis.mq.consuming import metric

KINDS = ["valkey", "redis7", "redis62"]


@dataclass(frozen=True)
class Pair:
    """A primary, its replica, and clients that follow a failover."""

    primary: EmbeddedServer
    replica: EmbeddedServer
    clients: list[redis.Redis]

    def client(self) -> redis.Redis:
        client = redis.Redis.from_url(self.primary.url)
        self.clients.append(client)
        return client

    def caught_up(self) -> None:
        with redis.Redis.from_url(self.primary.url) as client:
            # WAIT is about the writes of its own connection.
            client.set("caught-up", "yes")
            assert client.execute_command("WAIT", 1, 60_000) == 1

    def stop_replica(self) -> None:
        """From now on, it gets nothing."""
        # Its connection is closed, and it cannot come back: what is in no buffer cannot be replicated late.
        with redis.Redis.from_url(self.replica.url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", 1)

    def fail_over(self) -> None:
        """The primary dies, the replica is promoted, and every client finds it."""
        with redis.Redis.from_url(self.primary.url) as client:
            os.kill(client.info("server")["process_id"], signal.SIGKILL)
        with redis.Redis.from_url(self.replica.url) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        for client in self.clients:
            client.connection_pool.connection_kwargs["port"] = self.replica.port
            client.connection_pool.disconnect()
            client.connection_pool.reset()


@contextmanager
def pair_of(kind: str) -> Iterator[Pair]:
    binary = redis_binary(kind)
    if binary is None:
        unavailable("redis", f"no binary of {kind}")
    with ExitStack() as stack:
        # By default a primary waits for more replicas to come.
        at_once = ["--repl-diskless-sync-delay", "0"]
        primary = stack.enter_context(EmbeddedServer(binary=binary, args=at_once))
        following = ["--replicaof", "127.0.0.1", str(primary.port)]
        replica = stack.enter_context(EmbeddedServer(binary=binary, args=following))
        with redis.Redis.from_url(primary.url) as client:
            eventually(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        pair = Pair(primary, replica, [])
        yield pair
        for client in pair.clients:
            client.close()


@pytest.fixture(params=KINDS)
def pair(request) -> Iterator[Pair]:
    with pair_of(request.param) as pair:
        yield pair


@pytest.fixture
def losses(caplog):
    """The lines that report a loss."""
    caplog.set_level(logging.WARNING, logger="conquiet")
    return lambda: [line for line in caplog.messages if "has lost" in line]


def named_ids(lines) -> list[str]:
    return [one for line in lines for one in re.findall(r"\d+-\d+", line.partition("sent:")[2])]


def lost_total(stream: str) -> float:
    return metric("conquiet_queue_messages_lost_total", stream=stream)


def pause() -> None:
    """Longer than the pause after which a producer checks."""
    time.sleep(0.15)


def test_a_producer_names_every_message_that_a_failover_lost(pair, stream, losses):
    writer = StreamWriter(pair.client(), stream)
    ids = [writer.enqueue({"n": n}) for n in range(100)]
    pair.caught_up()
    pair.stop_replica()
    lost = [writer.enqueue({"n": n}) for n in range(100, 300)]
    lost += writer.enqueue_many([{"n": n} for n in range(300, 500)], batch_size=70)
    pair.fail_over()
    pause()

    writer.enqueue({"n": 500})

    summary, *named = losses()
    assert f"behind {ids[-1]}, up to {lost[-1]} at least, 400 of them; 400 were sent by" in summary
    assert named_ids(named) == lost
    assert lost_total(stream) == 400


def test_messages_sent_at_once_after_the_failover_do_not_hide_it(pair, stream, losses):
    client = pair.client()
    writer = StreamWriter(client, stream)
    writer.enqueue({"n": 0})
    pair.caught_up()
    pair.stop_replica()
    lost = [writer.enqueue({"n": n}) for n in range(1, 50)]
    pair.fail_over()
    StreamWriter(client, stream).enqueue_many([{"n": n} for n in range(50, 60)])
    writer.ends._known[stream].pause_from = time.monotonic() + 60
    writer.enqueue_many([{"n": n} for n in range(60, 70)])
    writer.ends.check(stream)

    assert named_ids(losses()) == lost
    assert lost_total(stream) == 49


def test_a_drain_reports_the_gap_and_the_doctor_repeats_it(pair, stream, losses, engine):
    client = pair.client()
    writer = StreamWriter(client, stream)
    kept = writer.enqueue_many([{"n": n} for n in range(10)])
    pair.caught_up()
    queue = RedisStreamsQueue(client, QueueConfig(stream, "billing", "worker", block_ms=20))
    pair.stop_replica()
    gone = writer.enqueue_many([{"n": n} for n in range(10, 40)])

    def handle(msg, session):
        if msg.id == gone[0]:
            queue.ends.check(stream)
            pair.fail_over()
            queue.ends.check(stream)

    queue.ends.watch(stream)
    with suppress(ConquietError):
        drain(queue, handle, engine, DrainLimits(max_messages=20, batch_size=1))

    (summary,) = losses()
    count = "30" if client.info("server")["redis_version"] >= "7" else "1"
    assert f"behind {kept[-1]}, up to {gone[-1]} at least, {count} of them" in summary
    (finding,) = (one for one in diagnose([], [topic_facts(client, stream)]) if one.check == "loss")
    assert f"the entries behind {kept[-1]} up to {gone[-1]} of stream {stream}" in finding.text
    assert end_mark(stream) in (finding.to_do or "")


def test_a_producer_and_a_consumer_of_a_topic_report_one_gap_once(pair, stream, losses):
    client = pair.client()
    topic = Topics(client).create(stream.replace(":", "-"), 2)
    streams = [topic.keys.stream(number) for number in topic.partitions]
    producer = Producer(client)
    producer.send_many(topic, [Message(payload={"n": n}, partition=n % 2) for n in range(20)])
    seen = []
    config = ConsumerConfig(consumer_name="worker", lease_ttl_ms=1_500)
    with PartitionConsumer(topic, "billing", lambda msg: seen.append(msg.id), config=config):
        eventually(lambda: len(seen) == 20)
        eventually(lambda: all(client.exists(topic.keys.end(number)) for number in topic.partitions))
        pair.caught_up()
        pair.stop_replica()
        lost = [producer.send(topic, {"n": n}, partition=n % 2) for n in range(20, 60)]
        eventually(lambda: len(seen) == 60)
        pair.fail_over()
        eventually(lambda: sum("seen by worker" in line for line in losses()) == 2)
        for partition in topic.partitions:
            producer.send(topic, {"n": "after"}, partition=partition)
        eventually(lambda: len(seen) >= 62)

    assert sorted(named_ids(losses()), key=entry_id_order) == sorted(lost, key=entry_id_order)
    assert [lost_total(one) for one in streams] == [20, 20]
    assert [loss.count for loss in topic_facts(client, topic).losses] == [20, 20]


def send_and_check(producer, topic, numbers) -> list[str]:
    ids = producer.send_many(topic, [Message(payload={"n": n}) for n in numbers])
    producer._ends.check(topic.keys.stream(0))
    return ids


@pytest.mark.parametrize("replicated", [0, 5])
def test_a_topic_whose_first_mark_was_not_replicated_is_reported_too(pair, stream, losses, replicated):
    client = pair.client()
    topic, producer = Topics(client).create(stream.replace(":", "-")), Producer(client)
    if replicated:
        producer.send_many(topic, [Message(payload={"n": n}) for n in range(replicated)])
    pair.caught_up()
    pair.stop_replica()
    lost = send_and_check(producer, topic, range(10)) + send_and_check(producer, topic, range(10, 20))
    pair.fail_over()
    pause()

    producer.send(topic, {"n": "after"})

    assert named_ids(losses()) == lost
    assert lost_total(topic.keys.stream(0)) == 20
    assert [loss.count for loss in topic_facts(client, topic).losses] == [20]


def test_a_consumer_reports_what_a_topic_without_a_replicated_mark_has_lost(pair, stream, losses):
    client = pair.client()
    topic, producer, seen = Topics(client).create(stream.replace(":", "-")), Producer(client), []
    config = ConsumerConfig(consumer_name="worker", lease_ttl_ms=1_500)
    pair.caught_up()
    pair.stop_replica()
    with PartitionConsumer(topic, "billing", lambda msg: seen.append(msg.id), config=config):
        ids = [producer.send(topic, {"n": n}) for n in range(20)]
        eventually(lambda: len(seen) == 20 and client.hget(topic.keys.end(0), "lastId"))
        pair.fail_over()
        eventually(lambda: any("seen by worker" in line for line in losses()))

    assert f"up to {ids[-1]} at least" in losses()[0]
    assert topic_facts(client, topic).losses


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_topic_that_a_failover_has_lost_as_a_whole_is_reported(pair, stream, losses, is_created_again):
    client = pair.client()
    pair.caught_up()
    pair.stop_replica()
    name = stream.replace(":", "-")
    topic, producer = Topics(client).create(name), Producer(client)
    lost = send_and_check(producer, topic, range(20))
    pair.fail_over()
    pause()
    if is_created_again:
        Topics(client).create(name)
        Producer(client).send(name, {"n": "of another"})

    with suppress(ConquietError):
        producer.send(topic, {"n": "after"})

    assert named_ids(losses()) == lost
    assert lost_total(topic.keys.stream(0)) == 20


def test_a_stream_that_a_failover_has_lost_as_a_whole_is_reported(pair, stream, losses):
    client = pair.client()
    pair.caught_up()
    pair.stop_replica()
    writer = StreamWriter(client, stream)
    lost = writer.enqueue_many([{"n": n} for n in range(20)])
    writer.ends.check(stream)
    pair.fail_over()
    pause()

    writer.enqueue({"n": "after"})

    assert named_ids(losses()) == lost
    assert lost_total(stream) == 20


# The same as a failover, on one server: every key of the stream is as it was before.


def roll_back(client, keys, dumps) -> None:
    for key, dump in zip(keys, dumps, strict=True):
        client.delete(key)
        if dump is not None:
            client.restore(key, 0, dump)


@pytest.fixture
def rolled_back(client, stream):
    """Goes back to the moment of its first call at the second."""
    keys = [stream, end_mark(stream)]
    dumps: list[bytes | None] = []

    def step() -> None:
        if dumps:
            roll_back(client, keys, dumps)
        else:
            dumps.extend(client.dump(key) for key in keys)

    return step


@pytest.fixture
def writer(client, stream) -> StreamWriter:
    """One that has checked before."""
    writer = StreamWriter(client, stream)
    writer.enqueue_many([{"n": n} for n in range(3)])
    writer.ends.check(stream)
    return writer


def test_a_drain_of_a_topic_reports_what_was_lost_while_it_waited_for_messages(
    client, stream, losses, monkeypatch
):
    monkeypatch.setattr(ends, "_CHECK_EVERY_S", 0.0)
    topic = Topics(client).create(stream.replace(":", "-"))
    keys = [topic.keys.stream(0), topic.keys.end(0)]
    dumps = [client.dump(key) for key in keys]
    sent = Producer(client).send_many(topic, [{"n": n} for n in range(5)])
    limits, seen = DrainLimits(max_messages=None, idle_ms=None, should_stop=lambda: bool(losses())), []
    with ThreadPoolExecutor(1) as threads:
        drained = threads.submit(
            drain_topic, topic, "billing", lambda msg: seen.append(msg.id), limits=limits
        )
        eventually(lambda: len(seen) == 5 and client.hget(keys[1], "lastId") == sent[-1].encode())
        roll_back(client, keys, dumps)
        drained.result(HANG_S)

    assert f"up to {sent[-1]} at least" in losses()[0]
    Topics(client).delete(topic.name)


def test_nothing_is_reported_without_a_failover(client, stream, writer, losses):
    for n in range(5):
        writer.enqueue({"n": n})
        writer.ends.check(stream)

    assert losses() == []
    assert lost_total(stream) == 0


@pytest.mark.parametrize("is_after", [False, True])
def test_a_loss_is_reported_whether_or_not_the_server_had_the_mark(
    client, stream, writer, losses, rolled_back, is_after
):
    if not is_after:
        client.delete(end_mark(stream))
    rolled_back()
    lost = writer.enqueue_many([{"n": n} for n in range(5)])
    if is_after:
        writer.ends.check(stream)
    rolled_back()

    writer.ends.check(stream)

    assert named_ids(losses()) == lost


def test_ids_that_a_slow_clock_gives_again_are_not_taken_for_the_lost_ones(
    client, stream, writer, losses, rolled_back
):
    rolled_back()
    lost = writer.enqueue_many([{"n": n} for n in range(5)])
    rolled_back()
    for entry_id in lost:
        client.xadd(stream, {"data": '{"n": "another"}'}, id=entry_id)

    writer.ends.check(stream)

    assert f"up to {lost[-1]} at least" in losses()[0]
    assert lost_total(stream) == 1, (
        "the last one is known to be another; of the others only their ids are known"
    )


def test_a_server_that_has_lost_everything_is_reported(client, stream, writer, losses):
    client.delete(stream, end_mark(stream))
    StreamWriter(client, stream).enqueue({"n": "of another"})

    writer.ends.check(stream)

    assert len(named_ids(losses())) == 3


OPERATORS = {
    "trimmed": lambda client, stream: client.xtrim(stream, maxlen=1, approximate=False),
    "emptied": lambda client, stream: client.xtrim(stream, maxlen=0, approximate=False),
    "deleted": lambda client, stream: client.delete(stream),
    "renamed": lambda client, stream: client.rename(stream, f"{stream}:old"),
    "replaced": lambda client, stream: (client.delete(stream), client.xadd(stream, {"data": "{}"})),
    "created-again-with-old-ids": lambda client, stream: (
        client.delete(stream),
        client.xadd(stream, {"data": "{}"}, id="1-1"),
    ),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_an_operator_does_to_a_stream_is_not_reported_as_a_loss(
    client, stream, writer, losses, operator
):
    OPERATORS[operator](client, stream)
    writer.ends.check(stream)
    writer.enqueue({"n": "after"})
    writer.ends.check(stream)

    assert losses() == []


def test_an_entry_that_an_operator_deleted_is_no_loss_where_the_server_remembers_it(
    client, stream, writer, losses
):
    newest = writer.enqueue({"n": "newest"})
    writer.ends.check(stream)
    client.xdel(stream, newest)
    writer.ends.check(stream)
    writer.enqueue({"n": "after"})
    writer.ends.check(stream)

    remembers = client.info("server")["redis_version"] >= "7"
    assert (losses() == []) is remembers


def test_a_topic_that_is_deleted_and_created_again_is_no_loss(client, stream, losses):
    name = stream.replace(":", "-")
    producer, topic = Producer(client), Topics(client).create(name)
    producer.send(topic, {"n": 1})
    producer._ends.check(topic.keys.stream(0))
    Topics(client).delete(name)
    assert client.exists(topic.keys.end(0)) == 0
    Topics(client).create(name)

    producer._ends.check(topic.keys.stream(0))
    producer.send(topic, {"n": 2})

    assert losses() == []
    Topics(client).delete(name)


def test_a_deleted_topic_is_no_loss_for_a_drain_of_its_partition_and_leaves_no_key(
    client, stream, losses, engine
):
    name = stream.replace(":", "-")
    topic = Topics(client).create(name)
    partition = topic.keys.stream(0)
    queue = RedisStreamsQueue(client, QueueConfig(partition, "billing", "worker", block_ms=20))
    Producer(client).send(topic, {"n": 1})
    drain(queue, lambda _msg, _session: None, engine, DrainLimits(idle_ms=20))
    queue.ends.check(partition)
    assert client.exists(end_mark(partition))

    Topics(client).delete(name)
    left = client.keys(f"*{name}*")
    queue.ends.check(partition)

    assert losses() == []
    assert left == []


def test_who_may_not_read_which_topics_were_deleted_reports_a_loss(client, stream, caplog):
    """A report too many can be seen through; one too few is silent."""
    name = stream.replace(":", "-")
    topic, user = Topics(client).create(name), f"sender-{stream}"
    rules = ("on", ">secret", "~stream:*", f"~streaming:mq:end:{name}:*", "+@all")
    client.execute_command("ACL", "SETUSER", user, *rules)
    settings = client.connection_pool.connection_kwargs
    with redis.Redis(host=settings["host"], port=settings["port"], username=user, password="secret") as own:
        ends = EndWatch(own)
        ends.watch(topic.keys.stream(0), topic.keys.end(0))
        ends.sent(topic.keys.stream(0), [Producer(client).send(topic, {"n": 1})])
        ends.check(topic.keys.stream(0))
        Topics(client).delete(name)
        ends.check(topic.keys.stream(0))
    client.execute_command("ACL", "DELUSER", user)

    assert "has lost" in caplog.text
    client.delete(topic.keys.end(0))


@pytest.mark.parametrize("topics", [1, 3])
def test_the_record_of_deleted_topics_forgets_what_is_old(client, stream, topics):
    names = [f"{stream.replace(':', '-')}-{number}" for number in range(topics)]
    key = deleted_streams_key(client)
    client.zadd(key, {f"{stream}:old": 1})
    for name in names:
        Topics(client).create(name, 2)
        Topics(client).delete(name)

    assert client.zscore(key, f"{stream}:old") is None
    assert all(client.zscore(key, f"stream:topic:{name}:p:1") for name in names)


def test_two_that_notice_at_once_count_one_loss(client, stream, losses, rolled_back):
    first, second, reader = (EndWatch(client, name) for name in ("first", "second", "reader"))
    writers = [StreamWriter(client, stream) for _ in range(2)]
    for writer in writers:
        writer.enqueue({"n": 0})
    for watch in (first, second, reader):
        watch.watch(stream)
        watch.check(stream)
    rolled_back()
    lost = [writer.enqueue({"n": n}) for n in range(4) for writer in writers]
    for watch in (first, second, reader):
        watch.check(stream)
    rolled_back()

    with ThreadPoolExecutor() as pool:
        watches = (first, second, reader, *(writer.ends for writer in writers))
        list(pool.map(lambda watch: watch.check(stream), watches))

    assert sorted(named_ids(losses()), key=entry_id_order) == lost
    assert lost_total(stream) == 8
    (loss,) = topic_facts(client, stream).losses
    assert (loss.epoch, loss.count, loss.last) == (1, 8, lost[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_server_takes_the_report(kind, losses):
    with server_of_its_own(kind) as client:
        writer = StreamWriter(client, "orders")
        kept = writer.enqueue({"n": 0})
        before = client.dump("orders")
        assert before is not None
        lost = writer.enqueue_many([{"n": n} for n in range(5)])
        client.restore("orders", 0, before, replace=True)
        fill(client, lambda _n, text: StreamWriter(client, "filler").enqueue({"text": text}))

        writer.ends.check("orders")

        assert f"behind {kept}, up to {lost[-1]}" in losses()[0]
        assert [loss.count for loss in topic_facts(client, "orders").losses] == [5]


def test_partitions_of_a_cluster_are_checked_with_their_nodes(losses):
    with EmbeddedServer(cluster=3) as server, open_client(server.url) as client:
        topic, producer = Topics(client).create("orders", 6), Producer(client)
        messages = [Message(payload={"n": n}, partition=n % 6) for n in range(60)]
        streams = [topic.keys.stream(number) for number in topic.partitions]
        producer.send_many(topic, messages)
        producer._ends.check(*streams)
        before = [client.dump(stream) for stream in streams]
        lost = producer.send_many(topic, messages)
        for stream, dump in zip(streams, before, strict=True):
            client.delete(stream)
            client.restore(stream, 0, dump)

        producer._ends.check(*streams)

        assert sorted(named_ids(losses())) == sorted(lost)
        assert [loss.count for loss in topic_facts(client, "orders").losses] == [10] * 6


@pytest.mark.parametrize("is_deleted", [False, True])
def test_of_a_cluster_a_deleted_topic_is_told_from_one_that_lost_its_marks(losses, is_deleted):
    with EmbeddedServer(cluster=3) as server, open_client(server.url) as client:
        topic, producer = Topics(client).create("orders", 4), Producer(client)
        messages = [Message(payload={"n": n}, partition=n % 4) for n in range(20)]
        streams = [topic.keys.stream(number) for number in topic.partitions]
        lost = producer.send_many(topic, messages)
        producer._ends.check(*streams)
        if is_deleted:
            Topics(client).delete("orders")
            Topics(client).create("orders", 4)
        else:
            for partition in topic.partitions:
                client.delete(topic.keys.stream(partition))
                client.delete(topic.keys.end(partition))

        producer._ends.check(*streams)

        assert sorted(named_ids(losses())) == ([] if is_deleted else sorted(lost))


def test_a_second_failover_is_a_second_loss(client, stream, writer, losses):
    for epoch in (1, 2):
        keys = [stream, end_mark(stream)]
        dumps = [client.dump(key) for key in keys]
        writer.enqueue({"n": "lost"})
        roll_back(client, keys, dumps)
        writer.ends.check(stream)
        assert f"epoch {epoch}" in losses()[-2]

    assert [loss.epoch for loss in topic_facts(client, stream).losses] == [1, 2]


def test_a_mark_of_another_kind_or_with_unknown_fields_is_tolerated(
    client, stream, writer, losses, rolled_back
):
    client.hset(
        end_mark(stream), mapping={"new": "field", "epoch": "many", "loss:x": b"\xff", "loss:7": "[]"}
    )
    rolled_back()
    lost = writer.enqueue_many([{"n": n} for n in range(5)])
    rolled_back()
    writer.ends.check(stream)
    assert named_ids(losses()) == lost
    assert client.hget(end_mark(stream), "new") == b"field"

    client.delete(end_mark(stream))
    client.set(end_mark(stream), "somebody's")
    writer.ends.check(stream)
    writer.enqueue({"n": 1})
    assert client.get(end_mark(stream)) == b"somebody's"


def test_who_may_not_check_still_sends(client, stream, caplog):
    caplog.set_level(logging.INFO, logger="conquiet")
    user = f"sender-{stream}"
    client.execute_command("ACL", "SETUSER", user, "on", ">secret", f"~{stream}", "+xadd")
    settings = client.connection_pool.connection_kwargs
    with redis.Redis(host=settings["host"], port=settings["port"], username=user, password="secret") as own:
        writer = StreamWriter(own, stream)
        writer.enqueue({"n": 1})
        writer.ends.check(stream)
        writer.enqueue({"n": 2})
    client.execute_command("ACL", "DELUSER", user)

    assert client.xlen(stream) == 2
    assert "will not be reported" in caplog.text
