"""An interrupt between a request and its reply: nobody takes that reply for its own, and all threads end."""

from __future__ import annotations

import threading

import pytest

from conquiet.errors import QueueError
from conquiet.mq import Producer, Topics
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.scripts import script
from conquiet.queue.batch_size import BATCH_BYTES
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP, Seen, owners, pending, quick, wait_until_finished
from tests.with_redis.mq.interrupts import InterruptError, interruptible_client


@pytest.fixture
def shared(server_url):
    """A client that threads share, and its interrupts."""
    with interruptible_client(server_url) as both:
        yield both


@pytest.mark.parametrize("how", ["one", "once", "many"])
def test_after_an_interrupted_send_the_next_one_gets_its_own_id(shared, topic, how):
    client, interrupts = shared
    producer = Producer(client)
    producer.send(topic.name, {"n": 0})
    sends = {
        "one": lambda n: producer.send(topic.name, {"n": n}),
        "once": lambda n: producer.send(topic.name, {"n": n}, dedupe_id=f"order-{n}"),
        "many": lambda n: producer.send_many(topic.name, [{"n": n}])[0],
    }
    sends[how](1)

    interrupts.next_one()
    with pytest.raises(InterruptError):
        sends[how](2)
    entry_id = sends[how](3)

    assert topic.client.xrevrange(topic.keys.stream(0), count=1)[0][0].decode() == entry_id


def owe_a_reply_of(hand, client, interrupts):
    """Leave an idle connection on which the reply to a read of this partition is still to come."""
    leased = hand.leased
    arguments = (leased.lease.owner, leased.lease.epoch, "", GROUP, 0, 100, BATCH_BYTES, 0)
    client.script_load(script("settle_and_read").text)
    interrupts.next_one()
    with pytest.raises(InterruptError):
        # By the client's own way, as an application may use it.
        client.evalsha(
            script("settle_and_read").digest, len(leased._settle_keys), *leased._settle_keys, *arguments
        )


def test_the_messages_of_another_partition_are_not_taken_for_its_own(shared, wide, producer):
    client, interrupts = shared
    topic = Topics(client).open(wide.name)
    first, second = Hand(topic, 0), Hand(topic, 1)
    for partition in (0, 1):
        producer.send(wide.name, {"n": partition}, partition=partition)
    owe_a_reply_of(second, client, interrupts)

    with pytest.raises(QueueError, match="that of another call"):
        first.read()

    # What was read for it is pending, and the connection that was out of step is gone.
    (entry,) = Hand(topic, 2).leased.topic.client.xpending_range(wide.keys.stream(0), GROUP, "-", "+", 10)
    assert entry["times_delivered"] == 1
    assert client.echo("in step") == b"in step"


@pytest.mark.parametrize("call", ["acquire", "renew", "release", "heartbeat"])
def test_a_lease_is_not_judged_by_the_reply_to_another_call(shared, wide, call):
    client, interrupts = shared
    topic = Topics(client).open(wide.name)
    leases = LeaseStore(topic, GROUP)
    lease = leases.acquire(0, "anna", 60_000)
    assert lease is not None
    owe_a_reply_of(Hand(topic, 1), client, interrupts)
    calls = {
        "acquire": lambda: leases.acquire(2, "anna", 60_000),
        "renew": lambda: leases.renew(lease, 60_000),
        "release": lambda: leases.release(lease),
        "heartbeat": lambda: leases.heartbeat("anna", 60_000),
    }

    with pytest.raises(QueueError, match="that of another call"):
        calls[call]()

    assert client.echo("in step") == b"in step"


def test_a_consumer_that_is_interrupted_again_and_again_ends_after_its_workers(shared, wide, producer, start):
    client, interrupts = shared
    go_on = threading.Event()
    begun, ended = Seen(), Seen()

    def slow(msg):
        begun(msg)
        assert go_on.wait(timeout=HANG_S)
        ended(msg)

    producer.send_many(wide.name, [{"n": n} for n in range(4)])
    running = start(Topics(client).open(wide.name), slow, config=quick(lease_ttl_ms=60_000))
    eventually(lambda: len(begun) == 4)

    interrupts.all_of(running.thread_name)
    eventually(lambda: interrupts.count > 2)

    assert running.is_running
    go_on.set()
    running.join()
    assert isinstance(running.error, InterruptError)
    assert running.consumer.owned == []
    assert owners(wide) == [None] * 4
    assert not [thread for thread in threading.enumerate() if wide.name in thread.name]
    assert sorted(ended.numbers()) == [0, 1, 2, 3]
    assert pending(wide) == {}


def test_a_consumer_loses_nothing_when_others_of_its_client_are_interrupted(shared, wide, producer, start):
    client, interrupts = shared
    topic = Topics(client).open(wide.name)
    seen = Seen()
    start(topic, seen, config=quick(batch_size=2))
    ids = producer.send_many(wide.name, [{"n": n} for n in range(200)])

    for _ in range(20):
        interrupts.next_one()
        with pytest.raises(InterruptError):
            Producer(client).send(wide.name, {"n": "interrupted"}, partition=0)

    wait_until_finished(wide)
    assert set(seen.ids) >= set(ids)
