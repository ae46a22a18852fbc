"""Members come and go: fair shares, take-over from the dead, and no settlement by those who were replaced."""

from __future__ import annotations

import json
import threading
from functools import partial
from urllib.parse import urlsplit

import pytest
import redis
from sqlalchemy import insert, select

from conquiet import EmbeddedServer, Inbox
from conquiet.errors import QueueError
from conquiet.mq import Message, Producer, RetryPolicy, Topics
from conquiet.mq.clock import lease_clock
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.scripts import script
from conquiet.queue.connection import open_client
from tests.conftest import effects
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.consuming import (
    GROUP,
    Seen,
    dead_letters,
    expire,
    metric,
    owners,
    pending,
    quick,
    wait_until_finished,
)
from tests.with_redis.mq.proxy import LossyProxy


@pytest.fixture
def notes(client, topic):
    """What worker processes noted: number, attempt, process id."""
    return lambda: [json.loads(line) for line in client.lrange(f"test:seen:{topic.name}", 0, -1)]


def place(topic, partition=0):
    return {"topic": topic.name, "partition": str(partition), "group": GROUP}


def test_a_member_that_joins_gets_its_fair_share_and_no_message_is_lost_or_doubled(wide, producer, start):
    seen = Seen()
    first = start(wide, seen)
    eventually(lambda: owners(wide) == [first.name] * 4)
    ids = producer.send_many(wide.name, [{"n": n} for n in range(200)])

    second = start(wide, seen)

    eventually(lambda: sorted(owners(wide), key=str) == sorted([first.name, second.name] * 2))
    ids += producer.send_many(wide.name, [{"n": n} for n in range(200)])
    wait_until_finished(wide)
    assert sorted(seen.ids) == sorted(ids)


def test_a_member_that_leaves_releases_its_partitions_and_the_others_take_them(wide, start):
    first, second = start(wide, Seen()), start(wide, Seen())
    eventually(lambda: sorted(owners(wide), key=str) == sorted([first.name, second.name] * 2))

    first.stop()

    assert first.name not in owners(wide)
    eventually(lambda: owners(wide) == [second.name] * 4)


def test_more_members_than_partitions_leave_some_idle(topic, start):
    running = [start(topic, Seen()) for _ in range(3)]
    names = sorted(member.name for member in running)

    eventually(lambda: owners(topic) == names[:1])

    eventually(lambda: sorted(len(member.consumer.owned) for member in running) == [0, 0, 1])


def test_the_dead_owners_messages_are_taken_over_in_order_beyond_one_batch(
    server_url, topic, send, start, notes
):
    ids = send(25)
    dead = start.process(server_url, topic, "hang", batch_size=20)
    eventually(lambda: len(pending(topic)) == 20)
    eventually(notes)
    dead.kill()
    dead.wait(timeout=HANG_S)
    expire(topic)
    seen = Seen()

    start(topic, seen, config=quick(batch_size=3))

    wait_until_finished(topic)
    assert seen.ids == ids
    assert [msg.attempt for msg in seen] == [2] * 20 + [1] * 5


def test_order_per_key_is_kept_over_a_take_over_in_the_middle(server_url, topic, producer, start, notes):
    messages = [Message(payload={"n": n, "hang": n == 7}, key=f"k{n % 2}") for n in range(20)]
    producer.send_many(topic.name, messages)
    dead = start.process(server_url, topic, "hang_at_last", batch_size=10)
    eventually(lambda: len(notes()) == 8)
    dead.kill()
    dead.wait(timeout=HANG_S)
    expire(topic)
    seen = Seen()

    start(topic, seen)

    wait_until_finished(topic)
    for key, first in (("k0", 8), ("k1", 7)):
        numbers = seen.numbers(key)
        assert numbers == sorted(numbers)
        assert set(numbers) >= set(range(first, 20, 2))


def test_a_message_that_kills_its_process_is_a_dead_letter_after_the_last_delivery(
    server_url, topic, producer, start, notes
):
    producer.send_many(topic.name, [{"n": 0}, {"n": 1, "poison": True}, {"n": 2}, {"n": 3}])

    for deaths in (1, 2):
        start.process(server_url, topic, "die_of_poison").wait(timeout=HANG_S)
        expire(topic)
        assert len([note for note in notes() if note[0] == 1]) == deaths
    seen = Seen()
    start(topic, seen, config=quick(retry=RetryPolicy(max_attempts=2)))

    wait_until_finished(topic)
    (letter,) = dead_letters(topic)
    assert (letter["errorType"], letter["attempts"]) == ("Poison", 2)
    assert "delivered 2 times" in letter["errorMessage"]
    # Its neighbours were read together with it each time, but it was not they who killed.
    assert seen.numbers() == [2, 3]
    assert {msg.attempt for msg in seen} == {2}


def test_a_handler_longer_than_the_lease_is_not_delivered_twice(topic, send, start):
    (entry_id, *_) = send(2)
    seen, go_on = Seen(), threading.Event()

    def slow(msg):
        seen(msg)
        assert go_on.wait(timeout=HANG_S)

    first = start(topic, slow, config=quick(lease_ttl_ms=4_000))
    eventually(lambda: seen)
    start(topic, seen, config=quick(lease_ttl_ms=4_000))
    lease = topic.keys.lease(GROUP, 0)
    began = int(topic.client.hget(lease, "acquiredAtMs"))
    eventually(lambda: int(topic.client.hget(lease, "expiresAtMs")) > began + 2 * 4_000)

    assert owners(topic) == [first.name]
    (row,) = topic.client.xpending_range(topic.keys.stream(0), GROUP, entry_id, entry_id, 1)
    assert row["time_since_delivered"] < 4_000
    go_on.set()
    wait_until_finished(topic)
    assert seen.numbers() == [0, 1]


def test_two_consumers_with_one_name_do_not_share_a_partition(topic, send, start):
    ids = send(40)
    seen = Seen()
    config = quick(consumer_name="worker-1", lease_ttl_ms=60_000, batch_size=5)

    first, second = start(topic, seen, config=config), start(topic, seen, config=config)

    wait_until_finished(topic)
    assert seen.ids == ids
    assert {msg.attempt for msg in seen} == {1}
    assert sorted(len(running.consumer.owned) for running in (first, second)) == [0, 1]


def test_a_lease_that_cannot_be_renewed_does_not_cost_the_others_theirs(wide, start, client):
    start(wide, Seen(), config=quick(lease_ttl_ms=1_500))
    eventually(lambda: None not in owners(wide))
    first, *others = [wide.keys.lease(GROUP, partition) for partition in wide.partitions]
    before = {lease: client.hgetall(lease) for lease in others}

    client.set(first, "not a lease")

    for lease, was in before.items():
        end = int(was[b"expiresAtMs"]) + 3_000
        eventually(partial(_ends_after, client, lease, end))
        assert client.hget(lease, "epoch") == was[b"epoch"]


def _ends_after(client, lease, end) -> bool:
    return int(client.hget(lease, "expiresAtMs") or 0) > end


def steal(topic):
    """Take the lease as if its owner had been silent for long, by a clock that runs ahead."""
    seconds, _ = topic.client.time()
    thief = LeaseStore(topic, GROUP, now_ms=lambda: seconds * 1000 + 600_000)
    assert thief.acquire(0, "thief", 600_000)


def test_an_owner_that_lost_its_lease_in_the_handler_commits_nothing(topic, send, start, engine):
    (entry_id,) = send(1)
    begun, stolen = threading.Event(), threading.Event()
    lost = metric("conquiet_mq_leases_lost_total", **place(topic))

    def write(msg, session):
        session.execute(insert(effects), {"entry_id": msg.id, "note": ""})
        begun.set()
        assert stolen.wait(timeout=HANG_S)

    running = start(topic, write, engine=engine)
    assert begun.wait(timeout=HANG_S)
    steal(topic)
    eventually(lambda: running.consumer._owned[0].channel.lease_valid_until < lease_clock())
    stolen.set()

    eventually(lambda: metric("conquiet_mq_leases_lost_total", **place(topic)) == lost + 1)
    with engine.connect() as connection:
        assert connection.scalars(select(effects.c.entry_id)).all() == []
    assert pending(topic) == {entry_id: (running.name, 1)}


def test_an_owner_that_lost_its_lease_settles_nothing(topic, send, start):
    ids = send(3)
    running = None
    seen = Seen()

    def lose(msg):
        seen(msg)
        if len(seen) == 1:
            steal(topic)

    running = start(topic, lose, config=quick(lease_ttl_ms=60_000))

    eventually(lambda: metric("conquiet_mq_fenced_total", **place(topic)) >= 1)
    assert list(pending(topic)) == ids
    assert owners(topic) == ["thief"]
    assert running.is_running


def test_an_entry_that_was_claimed_meanwhile_is_not_settled(topic, send, start, client):
    ids = send(2)
    seen = Seen()

    def lose(msg):
        seen(msg)
        if len(seen) == 1:
            client.xclaim(topic.keys.stream(0), GROUP, "thief", 0, [msg.id])

    # Not a lease that may end meanwhile: its next holder would take the entry from the thief.
    start(topic, lose, config=quick(lease_ttl_ms=60_000))

    eventually(lambda: metric("conquiet_mq_fenced_total", **place(topic)) == 1)
    eventually(lambda: pending(topic) == {ids[0]: ("thief", 2)})
    assert seen.ids == ids


@pytest.fixture
def durable():
    """A server that forgets nothing that it answered."""
    with EmbeddedServer(appendonly=True, appendfsync="always") as server:
        yield server


def patient(url):
    """A client that sends again what broke, as redis-py does by default."""
    return redis.Redis(port=urlsplit(url).port)


@pytest.mark.parametrize("open_it", [open_client, patient])
def test_a_server_that_dies_and_comes_back_loses_nothing(durable, name, start, engine, open_it):
    with open_it(durable.url) as client:
        topic = Topics(client).create(name, 2)
        ids = Producer(client).send_many(name, [{"n": n} for n in range(400)])
        written = Seen()

        def write(msg, session):
            session.execute(insert(effects), {"entry_id": msg.id, "note": ""})
            written(msg)

        config = quick(batch_size=10)
        running = start(topic, write, engine=engine, inbox=Inbox(), config=config)
        eventually(lambda: len(written) > 50)
        durable.kill()
        durable.restart()

        wait_until_finished(topic)
        running.stop()
        assert running.error is None
        with engine.connect() as connection:
            assert sorted(connection.scalars(select(effects.c.entry_id))) == sorted(ids)


def test_messages_whose_delivery_was_lost_in_the_network_are_handled_soon_and_in_order(
    server_url, topic, send, start
):
    digest = script("settle_and_read").digest
    with LossyProxy(server_url) as proxy, redis.Redis(port=proxy.port) as lossy:
        seen = Seen()
        running = start(Topics(lossy).open(topic.name), seen)
        eventually(lambda: owners(topic) != [None])
        proxy.lose_reply_to(digest.encode())

        ids = send(30)

        eventually(lambda: proxy.lost)
        ids += send(30)
        wait_until_finished(topic)
        running.stop()
        assert seen.ids == ids


def test_a_server_that_stays_unavailable_ends_the_consumer_with_an_error(durable, name, start):
    with open_client(durable.url) as client:
        topic = Topics(client).create(name, 2)
        running = start(topic, Seen(), config=quick(max_outage_s=0.3))
        eventually(lambda: len(running.consumer.owned) == 2)

        durable.kill()

        running.join()
        assert isinstance(running.error, QueueError)


def test_stop_waits_for_the_handler_even_if_the_server_is_unavailable(durable, name, start):
    with open_client(durable.url) as client:
        topic = Topics(client).create(name)
        Producer(client).send(name, {"n": 1})
        begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

        def slow(msg):
            begun.set()
            assert go_on.wait(timeout=HANG_S)
            ended.set()

        running = start(topic, slow)
        assert begun.wait(timeout=HANG_S)
        durable.kill()
        running.consumer.stop()

        assert not ended.wait(timeout=0.5)
        assert running.is_running
        go_on.set()
        running.join()
        assert ended.is_set()
