"""min_replicas: what is sent counts as sent when replicas have it; a row of the outbox stays until then."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine

from conquiet import (
    DbSession,
    DrainLimits,
    EmbeddedServer,
    NotReplicatedError,
    Outbox,
    OutboxRelay,
    QueueConfig,
    QueueError,
    RedisStreamsQueue,
    StreamWriter,
    drain,
)
from conquiet.mq import Message, Producer, Topics
from conquiet.queue.async_queue import AsyncQueue
from conquiet.queue.replicas import ReplicaWait
from tests.eventually import eventually
from tests.link import Link
from tests.services import Client, redis_binary, unavailable

KINDS = ["valkey", "redis7", "redis62"]


@pytest.fixture(scope="module", params=KINDS)
def servers(request) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """A primary and its replica."""
    binary = redis_binary(request.param)
    if binary is None:
        unavailable("redis", f"no binary of {request.param}")
    with primary_and_replica(binary) as servers:
        yield servers


@contextmanager
def primary_and_replica(binary: Path | None = None) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    # A stopped replica stays connected; and by default a primary waits for more replicas to come.
    with EmbeddedServer(
        binary=binary, args=["--repl-timeout", "3600", "--repl-diskless-sync-delay", "0"]
    ) as primary:
        following = ["--replicaof", "127.0.0.1", str(primary.port), "--repl-timeout", "3600"]
        with (
            EmbeddedServer(binary=binary, args=following) as replica,
            redis.Redis.from_url(primary.url) as client,
        ):
            eventually(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
            yield primary, replica


@pytest.fixture
def client(servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(servers[0].url) as client:
        yield client


@pytest.fixture
def stopped_replica(servers) -> Iterator[None]:
    """The replica is there, and confirms nothing."""
    pid = redis.Redis.from_url(servers[1].url).info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


@pytest.fixture
def outbox(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    outbox = Outbox()
    outbox.create_table(engine)
    with DbSession(engine) as session:
        for number in range(3):
            outbox.enqueue(session, "receipts", {"n": number})
    return engine, outbox


def writer_of(client, stream: str, min_replicas: int = 1) -> StreamWriter:
    return StreamWriter(client, stream, min_replicas=min_replicas, replica_timeout_ms=300)


SENDS = {
    "enqueue": lambda writer: [writer.enqueue({"n": 1})],
    "enqueue_many": lambda writer: writer.enqueue_many([{"n": 1}, {"n": 2}]),
    "enqueue_once": lambda writer: writer.enqueue_once([{"n": 1}, {"n": 2}], dedupe_id="a"),
}


@pytest.mark.parametrize("send", SENDS)
def test_what_was_sent_is_at_the_replica_when_the_call_returns(servers, client, stream, send):
    ids = SENDS[send](StreamWriter(client, stream, min_replicas=1, replica_timeout_ms=60_000))

    with redis.Redis.from_url(servers[1].url, decode_responses=True) as replica:
        assert [entry_id for entry_id, _ in replica.xrange(stream)] == ids


@pytest.mark.parametrize("send", SENDS)
def test_a_message_that_no_replica_confirms_is_an_error_that_names_it(client, stream, stopped_replica, send):
    with pytest.raises(NotReplicatedError, match="0 of min_replicas=1 replicas have them") as caught:
        SENDS[send](writer_of(client, stream))

    assert caught.value.entry_ids is not None
    assert list(caught.value.entry_ids) == [entry_id.decode() for entry_id, _ in client.xrange(stream)]
    assert (caught.value.confirmed, caught.value.stream) == (0, stream)


def test_more_replicas_than_there_are_is_an_error_and_none_is_no_wait(client, stream, stopped_replica):
    writer_of(client, stream, min_replicas=0).enqueue({"n": 1})
    with pytest.raises(NotReplicatedError, match="0 of min_replicas=2"):
        writer_of(client, stream, min_replicas=2).enqueue({"n": 2})


@pytest.mark.parametrize("send", SENDS)
def test_a_message_that_fills_the_server_is_named_too(client, stream, monkeypatch, send):
    """Else the caller takes the refusal for that of the message, and sends it again."""
    after = ReplicaWait.after

    def fill_and_wait(*arguments):
        client.config_set("maxmemory", 1)
        after(*arguments)

    monkeypatch.setattr(ReplicaWait, "after", fill_and_wait)
    try:
        with pytest.raises(NotReplicatedError) as caught:
            SENDS[send](writer_of(client, stream))
    finally:
        client.config_set("maxmemory", 0)

    assert list(caught.value.entry_ids or ()) == [entry_id.decode() for entry_id, _ in client.xrange(stream)]


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("trouble", ["dies", "is demoted"])
def test_a_message_whose_primary_fails_before_it_is_confirmed_is_named(stream, monkeypatch, send, trouble):
    with primary_and_replica() as (primary, replica), redis.Redis.from_url(primary.url) as client:
        after, added = ReplicaWait.after, list[str]()

        def fail_and_wait(*arguments):
            added.extend(entry_id.decode() for entry_id, _ in client.xrange(stream))
            if trouble == "dies":
                os.kill(client.info("server")["process_id"], signal.SIGKILL)
            else:
                client.replicaof("127.0.0.1", str(replica.port))
            after(*arguments)

        monkeypatch.setattr(ReplicaWait, "after", fail_and_wait)
        with pytest.raises(NotReplicatedError) as caught:
            SENDS[send](writer_of(client, stream))

    assert list(caught.value.entry_ids or ()) == added != []


TOPIC_SENDS = {
    "send": lambda producer, topic: [producer.send(topic, {"n": 1})],
    "send_once": lambda producer, topic: [producer.send(topic, {"n": 1}, dedupe_id="a")],
    "send_many": lambda producer, topic: producer.send_many(topic, [{"n": 1}, {"n": 2}]),
}


@pytest.mark.parametrize("send", TOPIC_SENDS)
def test_what_was_sent_to_a_topic_is_at_the_replica_or_an_error_names_it(
    servers, client, stream, request, send
):
    topic = Topics(client).create(stream.replace(":", "-"))
    producer = Producer(client, min_replicas=1, replica_timeout_ms=60_000)

    ids = TOPIC_SENDS[send](producer, topic)
    with redis.Redis.from_url(servers[1].url, decode_responses=True) as replica:
        assert [entry_id for entry_id, _ in replica.xrange(topic.keys.stream(0))] == ids

    request.getfixturevalue("stopped_replica")
    with pytest.raises(NotReplicatedError) as caught:
        Producer(client, min_replicas=1, replica_timeout_ms=100).send(topic, {"n": 3})
    (last,) = caught.value.entry_ids or ()
    assert client.xrevrange(topic.keys.stream(0), count=1)[0][0].decode() == last


def test_a_queue_waits_as_its_config_says(servers, stream, stopped_replica):
    config = QueueConfig(stream, "billing", "worker", min_replicas=1, replica_timeout_ms=100)
    with RedisStreamsQueue.from_url(servers[0].url, config) as queue, pytest.raises(NotReplicatedError):
        queue.enqueue({"n": 1})


def test_rows_of_the_outbox_stay_until_replicas_have_their_messages(client, outbox, stopped_replica):
    engine, table = outbox
    client.delete("receipts")

    with pytest.raises(NotReplicatedError):
        OutboxRelay(engine, client, table, min_replicas=1, replica_timeout_ms=100).relay()

    assert table.waiting(engine) == 3


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_refused_while_a_replica_hangs_is_not_added_again(servers, client, outbox, is_restarted):
    """One entry and one effect for each row, however often it is tried, also by another process."""
    engine, table = outbox
    client.delete("receipts")
    pid = redis.Redis.from_url(servers[1].url).info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    relay = OutboxRelay(engine, client, table, min_replicas=1, replica_timeout_ms=50)
    for _ in range(4):
        with pytest.raises(NotReplicatedError):
            relay.relay()
        if is_restarted:
            relay = OutboxRelay(engine, client, table, min_replicas=1, replica_timeout_ms=50)
    assert client.xlen("receipts") == 3
    os.kill(pid, signal.SIGCONT)
    relay = OutboxRelay(engine, client, table, min_replicas=1, replica_timeout_ms=60_000)

    assert relay.relay() == 3

    queue, seen = RedisStreamsQueue(client, QueueConfig("receipts", "billing", "worker")), []
    drain(queue, lambda msg, _session: seen.append(msg.payload), engine, DrainLimits(idle_ms=20))
    assert seen == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert not client.exists(f"{{receipts}}:once:outbox:{table.name_in(engine)}")


def test_a_send_with_a_dedupe_id_that_was_refused_waits_again_and_adds_nothing(servers, client, stream):
    topic = Topics(client).create(stream.replace(":", "-"))
    pid = redis.Redis.from_url(servers[1].url).info("server")["process_id"]

    def send(timeout_ms: int) -> list[str]:
        producer = Producer(client, min_replicas=1, replica_timeout_ms=timeout_ms)
        writer = StreamWriter(client, stream, min_replicas=1, replica_timeout_ms=timeout_ms)
        sends = (
            lambda: writer.enqueue_once([{"n": 1}], dedupe_id="a"),
            lambda: [producer.send(topic, {"n": 1}, dedupe_id="a")],
            lambda: producer.send_many(topic, [Message(payload={"n": 2}, dedupe_id="b")]),
        )
        ids = []
        for one in sends:
            try:
                ids += one()
            except NotReplicatedError:
                assert timeout_ms == 50
        return ids

    os.kill(pid, signal.SIGSTOP)
    assert [send(50), send(50)] == [[], []]
    os.kill(pid, signal.SIGCONT)
    ids = send(60_000)

    assert len(ids) == 3
    assert (client.xlen(stream), client.xlen(topic.keys.stream(0))) == (1, 2)


def test_the_outbox_publishes_nothing_while_too_few_replicas_are_connected(client, outbox):
    engine, table = outbox
    client.delete("receipts")

    with pytest.raises(
        NotReplicatedError, match="nothing was sent: 1 of min_replicas=2 replicas are connected"
    ):
        OutboxRelay(engine, client, table, min_replicas=2).relay()

    assert (table.waiting(engine), client.exists("receipts")) == (3, 0)


def test_the_outbox_is_emptied_when_the_replica_has_everything(servers, client, outbox):
    engine, table = outbox
    client.delete("receipts")

    assert OutboxRelay(engine, client, table, min_replicas=1, replica_timeout_ms=60_000).relay() == 3

    with redis.Redis.from_url(servers[1].url) as replica:
        assert (table.waiting(engine), replica.xlen("receipts")) == (0, 3)


def test_a_failover_loses_no_message_whose_send_returned(stream):
    """The replica lags, is promoted, and has every message that was confirmed."""
    with (
        primary_and_replica() as (primary, replica),
        redis.Redis.from_url(primary.url) as client,
        redis.Redis.from_url(replica.url) as promoted,
    ):
        patient = StreamWriter(client, stream, min_replicas=1, replica_timeout_ms=60_000)
        confirmed = [patient.enqueue({"n": number}) for number in range(20)]
        lagging = promoted.info("server")["process_id"]
        os.kill(lagging, signal.SIGSTOP)
        with pytest.raises(NotReplicatedError):
            writer_of(client, stream).enqueue_many([{"n": number} for number in range(20, 30)])
        os.kill(client.info("server")["process_id"], signal.SIGKILL)
        os.kill(lagging, signal.SIGCONT)
        promoted.replicaof("NO", "ONE")

        left = [entry_id.decode() for entry_id, _ in promoted.xrange(stream)]
        assert left[:20] == confirmed


class WatchedPool(redis.ConnectionPool):
    """Calls `after_use` whenever a connection is free again."""

    after_use: Callable[[], None] = staticmethod(lambda: None)

    def release(self, connection) -> None:
        super().release(connection)
        self.after_use()


ALL_SENDS = {
    "enqueue": lambda client, _: SENDS["enqueue"](writer_of(client, "receipts")),
    "enqueue_many": lambda client, _: SENDS["enqueue_many"](writer_of(client, "receipts")),
    "enqueue_once": lambda client, _: SENDS["enqueue_once"](writer_of(client, "receipts")),
    "send": lambda client, _: TOPIC_SENDS["send"](Producer(client, min_replicas=1), "invoices"),
    "send_once": lambda client, _: TOPIC_SENDS["send_once"](Producer(client, min_replicas=1), "invoices"),
    "send_many": lambda client, _: TOPIC_SENDS["send_many"](Producer(client, min_replicas=1), "invoices"),
    "relay": lambda client, outbox: OutboxRelay(outbox[0], client, outbox[1], min_replicas=1).relay(),
}


@pytest.fixture(scope="module")
def two_primaries() -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Each with a replica."""
    with primary_and_replica() as (old, _), primary_and_replica() as (new, _):
        yield old, new


@pytest.mark.parametrize("send", ALL_SENDS)
def test_a_replica_of_the_new_primary_does_not_confirm_what_the_old_one_was_given(
    two_primaries, outbox, send
):
    """The failover comes between the write and the question whether a replica has it."""
    old, new = two_primaries
    with (
        Link("127.0.0.1", old.port) as address,
        redis.Redis.from_url(old.url) as at_old,
        redis.Redis.from_url(new.url) as at_new,
    ):
        streams = {Topics(at).create("invoices").keys.stream(0) for at in (at_old, at_new)} | {"receipts"}
        pool = WatchedPool(host="127.0.0.1", port=address.port)

        def fail_over_after_the_write() -> None:
            if any(map(at_old.xlen, streams)):
                pool.after_use = lambda: None
                address.cut()
                address.mend(new.port)

        pool.after_use = fail_over_after_the_write
        with pytest.raises(NotReplicatedError):
            ALL_SENDS[send](redis.Redis(connection_pool=pool), outbox)

        assert any(map(at_old.xlen, streams))
        assert not any(map(at_new.xlen, streams))
        assert outbox[1].waiting(outbox[0]) == 3
        # The next one writes to it again.
        Topics(at_old).delete("invoices")
        at_old.delete("receipts")


@contextmanager
def on_disk(how: str) -> Iterator[Client]:
    """A server that writes to its disk like this; one of those that can wait for it."""
    append = ["--appendonly", "yes", "--appendfsync", how]
    with EmbeddedServer(args=append) as server, redis.Redis.from_url(server.url) as client:
        yield client


def syncing(client: Client, stream: str, **options: Any) -> StreamWriter:
    return StreamWriter(client, stream, fsync=True, **options)


@pytest.mark.parametrize("send", SENDS)
def test_with_fsync_a_call_returns_when_its_messages_are_on_disk_and_else_names_them(stream, send):
    with on_disk("everysec") as client:
        ids = SENDS[send](syncing(client, stream, replica_timeout_ms=60_000))
        assert client.execute_command("WAITAOF", 1, 0, 1)[0] == 1
        # The system writes it when it likes: nobody knows when.
        client.config_set("appendfsync", "no")
        with pytest.raises(NotReplicatedError, match="not known to be on disk: a crash") as caught:
            SENDS[send](syncing(client, f"{stream}:2", replica_timeout_ms=100))

        assert [name.decode() for name, _ in client.xrange(stream)] == ids
        added = [name.decode() for name, _ in client.xrange(f"{stream}:2")]
    assert list(caught.value.entry_ids or ()) == added != []


def test_with_fsync_replicas_must_have_it_on_their_disks_too(stream):
    following = ["--appendonly", "no"]
    with on_disk("always") as client:
        port = client.connection_pool.connection_kwargs["port"]
        with EmbeddedServer(args=[*following, "--replicaof", "127.0.0.1", str(port)]) as replica:
            eventually(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
            StreamWriter(client, stream, min_replicas=1, replica_timeout_ms=60_000).enqueue({})
            with pytest.raises(NotReplicatedError, match="0 of min_replicas=1"):
                syncing(client, stream, min_replicas=1, replica_timeout_ms=100).enqueue({})
            with redis.Redis.from_url(replica.url) as other:
                other.config_set("appendonly", "yes")

            syncing(client, stream, min_replicas=1, replica_timeout_ms=60_000).enqueue({})


def test_fsync_that_is_turned_off_after_a_message_was_added_names_it(stream, monkeypatch):
    after = ReplicaWait.after

    def turn_off_and_wait(self, client, *arguments):
        client.config_set("appendonly", "no")
        after(self, client, *arguments)

    monkeypatch.setattr(ReplicaWait, "after", turn_off_and_wait)
    with on_disk("always") as client, pytest.raises(NotReplicatedError) as caught:
        syncing(client, stream).enqueue({})

    assert len(caught.value.entry_ids or ()) == 1


def test_fsync_is_refused_where_the_server_cannot_tell_and_nothing_is_sent(servers, client, stream, outbox):
    engine, table = outbox
    client.delete("receipts")
    Topics(client).create(stream.replace(":", "-"))
    is_old = "valkey_version" not in client.info("server")
    why = "has no WAITAOF, which Redis 7.2 and Valkey have" if is_old else "appendonly is off"

    with pytest.raises(QueueError, match=f"nothing was sent: .*{why}"):
        syncing(client, stream).enqueue({})
    with pytest.raises(QueueError, match=why):
        Producer(client, fsync=True).send(stream.replace(":", "-"), {})
    with pytest.raises(QueueError, match=why):
        OutboxRelay(engine, client, table, fsync=True).relay()

    assert not client.exists(stream, "receipts")
    assert table.waiting(engine) == 3


def test_with_fsync_rows_of_the_outbox_stay_until_their_messages_are_on_disk(outbox):
    engine, table = outbox
    with on_disk("no") as client:
        with pytest.raises(NotReplicatedError):
            OutboxRelay(engine, client, table, fsync=True, replica_timeout_ms=100).relay()
        assert table.waiting(engine) == 3
        client.config_set("appendfsync", "always")

        assert OutboxRelay(engine, client, table, fsync=True, replica_timeout_ms=60_000).relay() == 3
        assert client.xlen("receipts") == 3


def test_with_fsync_a_topic_and_an_asyncio_client_wait_too(stream):
    name = stream.replace(":", "-")
    with on_disk("no") as client:
        Topics(client).create(name)
        with pytest.raises(NotReplicatedError):
            Producer(client, fsync=True, replica_timeout_ms=100).send(name, {})

        async def enqueue() -> str:
            url = f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"
            async with redis.asyncio.Redis.from_url(url) as opened:
                return await AsyncQueue(opened, stream, fsync=True, replica_timeout_ms=100).enqueue({})

        with pytest.raises(NotReplicatedError):
            asyncio.run(enqueue())
        client.config_set("appendfsync", "always")
        assert asyncio.run(enqueue())
