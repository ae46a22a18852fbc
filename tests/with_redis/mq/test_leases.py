"""Leases against a model of them: whatever the owners do and whatever the clock says, one owner at a time."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from conquiet.consume.outcome import Settlement
from conquiet.errors import LeaseLostError, QueueError
from conquiet.mq import Producer, Topic, Topics
from conquiet.mq.own.leases import Lease, LeaseStore
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.own.waiting import Waiting
from conquiet.queue.connection import open_client
from tests.services import redis_server
from tests.with_redis.mq.consuming import GROUP, pending

TTL_MS = 60_000
owner_names = st.sampled_from(["anna", "ben", "clara"])


class LeaseModel(RuleBasedStateMachine):
    """Who holds the lease in which epoch until when; what is pending, where, and delivered how often."""

    url: str
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(self.url)
        self.topic = Topics(self.client).create(f"model-{uuid.uuid4().hex[:10]}")
        self.producer = Producer(self.client)
        self.now = 1_000_000
        self.store = LeaseStore(self.topic, GROUP, now_ms=lambda: self.now)
        self.owner: tuple[str, int] | None = None
        #: The handle of each lease that was ever acquired.
        self.handles: dict[Lease, LeasedPartition] = {}
        self.expires_at = 0
        self.epoch = 0
        self.unread: list[str] = []
        self.pending: dict[str, tuple[str, int]] = {}
        self.client.xgroup_create(self.topic.keys.stream(0), GROUP, "0-0", mkstream=True)

    def handle(self, lease: Lease) -> LeasedPartition:
        return self.handles.get(lease) or LeasedPartition(self.topic, GROUP, lease, self.store)

    def is_valid(self, lease: Lease) -> bool:
        return self.owner == (lease.owner, lease.epoch) and self.now < self.expires_at

    @rule(ms=st.sampled_from([1, TTL_MS // 2, TTL_MS - 1, TTL_MS, 3 * TTL_MS]))
    def let_time_pass(self, ms):
        self.now += ms

    @rule()
    def send(self):
        self.unread += self.producer.send_many(self.topic.name, [{"n": 1}, {"n": 2}])

    @rule(target=held, name=owner_names)
    def acquire(self, name):
        is_free = self.owner is None or self.now >= self.expires_at
        is_own = not is_free and self.owner is not None and self.owner[0] == name

        lease = self.store.acquire(0, name, TTL_MS)

        assert (lease is not None) == (is_free or is_own)
        if lease is None:
            # What somebody would have who did not listen.
            return Lease(0, name, self.epoch)
        assert lease.epoch > self.epoch
        self.epoch = lease.epoch
        self.owner, self.expires_at = (name, lease.epoch), self.now + TTL_MS
        self.handles[lease] = LeasedPartition(self.topic, GROUP, lease, self.store)
        return lease

    @rule(name=owner_names)
    def acquire_by_another_process(self, name):
        if self.owner is not None and self.now < self.expires_at:
            assert LeaseStore(self.topic, GROUP, now_ms=lambda: self.now).acquire(0, name, TTL_MS) is None

    @rule(lease=held)
    def renew(self, lease):
        is_valid = self.is_valid(lease)

        assert self.store.renew(lease, TTL_MS, self.in_hands_of(lease)) == is_valid

        if is_valid:
            self.expires_at = self.now + TTL_MS

    @rule(lease=held)
    def release(self, lease):
        is_valid = self.is_valid(lease)

        assert self.store.release(lease) == is_valid

        if is_valid:
            self.owner = None

    @rule(lease=held, count=st.integers(1, 3))
    def read(self, lease, count):
        if not self.is_valid(lease):
            with pytest.raises(LeaseLostError):
                self.handle(lease).settle_and_read([], count)
            return

        _, batch = self.handle(lease).settle_and_read([], count)

        assert [msg.id for msg in batch.messages] == self.unread[:count]
        self.unread = self.unread[count:]
        self.pending |= {msg.id: (lease.owner, 1) for msg in batch.messages}

    @rule(lease=held)
    def take_over(self, lease):
        if not self.is_valid(lease):
            with pytest.raises(LeaseLostError):
                self.handle(lease).take_over(None, 100)
            return
        taken, after = [], None
        while True:
            page = self.handle(lease).take_over(after, 2)
            taken += page.batch.messages
            if page.after is None:
                break
            after = page.after

        assert [msg.id for msg in taken] == sorted(self.pending)
        for msg in taken:
            assert msg.delivery_count == self.pending[msg.id][1] + 1
            # Taking counts nothing; the message is shown as it will be once it has begun.
            self.pending[msg.id] = (lease.owner, msg.delivery_count - 1)

    @rule(lease=held, kind=st.sampled_from(["ack", "hand_back", "dead_letter", "begin"]))
    def settle(self, lease, kind):
        if not self.pending:
            return
        entry_id, (consumer, count) = next(iter(self.pending.items()))
        first: Any = {"dead_letter": "{}", "hand_back": max(0, count - 1)}.get(kind, "")
        settlement = Settlement(kind, entry_id, count, first)
        if not self.is_valid(lease):
            with pytest.raises(LeaseLostError):
                self.handle(lease).settle_and_read([settlement], 0)
            return

        effects, _ = self.handle(lease).settle_and_read([settlement], 0)

        assert effects == [consumer == lease.owner]
        if effects == [True]:
            del self.pending[entry_id]
            if kind in ("hand_back", "begin"):
                new_count = count + 1 if kind == "begin" else max(0, count - 1)
                self.pending = {entry_id: (consumer, new_count), **self.pending}

    @rule(lease=held)
    def settle_with_an_old_count(self, lease):
        if not self.pending or not self.is_valid(lease):
            return
        entry_id, (_, count) = next(iter(self.pending.items()))

        effects, _ = self.handle(lease).settle_and_read([Settlement("ack", entry_id, count - 1)], 0)

        assert effects == [False]

    @invariant()
    def the_server_holds_what_the_model_holds(self):
        assert pending(self.topic) == self.pending

    def in_hands_of(self, lease):
        return [(id_, count) for id_, (name, count) in self.pending.items() if name == lease.owner]

    def teardown(self):
        Topics(self.client).delete(self.topic.name)
        self.client.close()


@pytest.mark.parametrize("kind", ["valkey", "redis7", "redis62"])
def test_the_leases_and_their_model_never_differ(kind):
    with redis_server(kind) as url:
        machine = type("Machine", (LeaseModel,), {"url": url})
        quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=quiet
            ),
        )


@pytest.fixture
def clock():
    class Clock:
        now = 5_000_000

        def __call__(self):
            return self.now

    return Clock()


@pytest.fixture
def store(topic, clock):
    return LeaseStore(topic, GROUP, now_ms=clock)


def test_an_expired_owner_can_do_nothing(topic, store, clock, send):
    send(2)
    old = LeasedPartition(topic, GROUP, store.acquire(0, "anna", TTL_MS), store)
    old.create_group()
    _, batch = old.settle_and_read([], 1)
    clock.now += TTL_MS

    assert not store.renew(old.lease, TTL_MS)
    assert not store.release(old.lease)
    for attempt in (
        lambda: old.settle_and_read([], 1),
        lambda: old.settle_and_read([Settlement("ack", batch.messages[0].id, 1)], 0),
        lambda: old.take_over(None, 10),
        lambda: old.take_due(10),
    ):
        with pytest.raises(LeaseLostError, match=r"'anna' lost its lease \(epoch 1\) on partition 0"):
            attempt()
    assert pending(topic) == {batch.messages[0].id: ("anna", 1)}


def test_in_a_batch_of_every_kind_only_what_others_have_taken_is_refused(topic, store, send, client):
    send(20)
    partition = LeasedPartition(topic, GROUP, store.acquire(0, "anna", TTL_MS), store)
    partition.create_group()
    ids = [msg.id for msg in partition.settle_and_read([], 20)[1].messages]
    # By another consumer, and by another delivery to the same one.
    client.xclaim(topic.keys.stream(0), GROUP, "thief", 0, ids[2:5])
    client.xclaim(topic.keys.stream(0), GROUP, "anna", 0, ids[6:9])
    kinds = [
        Settlement("ack", "", 1),
        Settlement("dead_letter", "", 1, "{}"),
        Settlement("retry", "", 1, 9_999, "{}"),
    ]
    settlements = [replace(kinds[n % 3], entry_id=entry_id) for n, entry_id in enumerate(ids)]
    settlements[7] = Settlement("ack", ids[7], 2)

    effects, _ = partition.settle_and_read(settlements, 0)

    refused = {2, 3, 4, 6, 8}
    assert effects == [number not in refused for number in range(20)]
    assert set(pending(topic)) == {
        ids[number] for number in range(20) if number % 3 == 2 or number in refused
    }


@pytest.mark.parametrize("others", [0, 5])
def test_one_call_settles_an_entry_once(topic, store, send, client, others):
    send(1 + others)
    partition = LeasedPartition(topic, GROUP, store.acquire(0, "anna", TTL_MS), store)
    partition.create_group()
    entry_id, *rest = [msg.id for msg in partition.settle_and_read([], 10)[1].messages]
    settlements = [
        Settlement("dead_letter", entry_id, 1, "{}"),
        *(Settlement("dead_letter", other, 1, "{}") for other in rest),
        Settlement("ack", entry_id, 1),
        Settlement("retry", entry_id, 1, 10, "{}"),
    ]

    effects, _ = partition.settle_and_read(settlements, 0)

    assert effects == [False, *[True] * others, True, False]
    assert client.xlen(topic.keys.dead_letters(0)) == others
    assert client.zcard(topic.keys.waiting(GROUP, 0)) == 0
    assert pending(topic) == {}


@pytest.mark.parametrize("broken", ["waiting", "failures", "delayed", "delayed_items", "dead_letters"])
def test_a_key_of_another_type_is_an_error_that_changes_nothing(topic, store, send, client, broken):
    send(4)
    partition = LeasedPartition(topic, GROUP, store.acquire(0, "anna", TTL_MS), store)
    partition.create_group()
    ids = [msg.id for msg in partition.settle_and_read([], 4)[1].messages]
    keys = topic.keys
    of_group = {"waiting": keys.waiting, "failures": keys.failures}
    key = of_group[broken](GROUP, 0) if broken in of_group else getattr(keys, broken)(0)
    client.set(key, "of another type")
    settlements = [
        Settlement("ack", ids[0], 1),
        Settlement("dead_letter", ids[1], 1, "{}"),
        Settlement("retry", ids[2], 1, 60_000, "{}"),
        Settlement("requeue", ids[3], 1, 60_000, "0:{}"),
    ]

    for _ in range(2):
        with pytest.raises(QueueError, match="WRONGTYPE"):
            partition.settle_and_read(settlements, 0)

    assert list(pending(topic)) == ids
    client.delete(key)
    assert partition.settle_and_read(settlements, 0)[0] == [True] * 4
    assert client.xlen(keys.dead_letters(0)) == client.zcard(keys.delayed(0)) == 1


def test_who_may_not_ack_writes_no_dead_letter(topic, store, send, client, server_url):
    send(1)
    partition = LeasedPartition(topic, GROUP, store.acquire(0, "anna", TTL_MS), store)
    partition.create_group()
    (msg,) = partition.settle_and_read([], 1)[1].messages
    client.execute_command("ACL", "SETUSER", "no-acks", "on", ">secret", "~*", "&*", "+@all", "-xack")

    with redis.Redis.from_url(server_url.replace("redis://", "redis://no-acks:secret@")) as restricted:
        limited = replace(topic, client=restricted)
        of_limited = LeasedPartition(limited, GROUP, store.acquire(0, "anna", TTL_MS), store)
        with pytest.raises(QueueError):
            of_limited.settle_and_read([Settlement("dead_letter", msg.id, 1, "{}")], 0)

    assert client.xlen(topic.keys.dead_letters(0)) == 0
    assert list(pending(topic)) == [msg.id]


def test_an_old_epoch_of_the_same_owner_can_do_nothing(topic, store, clock):
    old = store.acquire(0, "anna", TTL_MS)
    clock.now += TTL_MS
    new = store.acquire(0, "anna", TTL_MS)

    assert new.epoch == old.epoch + 1
    assert not store.renew(old, TTL_MS)
    assert not store.release(old)
    assert store.renew(new, TTL_MS)


def test_a_release_that_comes_late_does_not_end_what_the_owner_acquired_since(topic, store):
    old = store.acquire(0, "anna", TTL_MS)
    # The reply to its release was lost, and the request is still on its way.
    new = store.acquire(0, "anna", TTL_MS)

    assert not store.release(old)
    assert store.renew(new, TTL_MS)
    assert store.acquire(0, "ben", TTL_MS) is None


def test_another_process_with_the_same_name_is_somebody_else(topic, store, clock):
    lease = store.acquire(0, "anna", TTL_MS)
    other = LeaseStore(topic, GROUP, now_ms=clock)

    assert other.acquire(0, "anna", TTL_MS) is None
    assert store.renew(lease, TTL_MS)
    assert other.acquire(0, "anna", TTL_MS, replaces=["anna"]) is not None
    assert not store.renew(lease, TTL_MS)


def test_epochs_rise_even_when_the_lease_key_is_gone(topic, store, client):
    first = store.acquire(0, "anna", TTL_MS)
    client.delete(topic.keys.lease(GROUP, 0))

    assert store.acquire(0, "ben", TTL_MS).epoch > first.epoch


def test_a_lease_that_nobody_renews_leaves_no_key_for_ever(topic, store, client):
    store.acquire(0, "anna", 1_000)

    assert 0 < client.pttl(topic.keys.lease(GROUP, 0)) <= 2_000


def test_renewing_keeps_messages_alive_and_leaves_their_count(topic, store, send, client):
    send(1)
    partition = LeasedPartition(topic, GROUP, store.acquire(0, "anna", TTL_MS), store)
    partition.create_group()
    _, batch = partition.settle_and_read([], 1)
    stream, (msg,) = topic.keys.stream(0), batch.messages
    client.xclaim(stream, GROUP, "anna", 0, [msg.id], idle=50_000, justid=True)

    assert store.renew(partition.lease, TTL_MS, [(msg.id, 1)])

    (row,) = client.xpending_range(stream, GROUP, "-", "+", 10)
    assert row["time_since_delivered"] < 5_000
    assert row["times_delivered"] == 1


def test_renewing_does_not_take_back_what_somebody_else_has_taken(topic, store, send, client):
    send(1)
    partition = LeasedPartition(topic, GROUP, store.acquire(0, "anna", TTL_MS), store)
    partition.create_group()
    _, batch = partition.settle_and_read([], 1)
    (msg,) = batch.messages
    client.xclaim(topic.keys.stream(0), GROUP, "thief", 0, [msg.id])

    assert store.renew(partition.lease, TTL_MS, [(msg.id, 1)])

    assert pending(topic) == {msg.id: ("thief", 2)}


def test_a_lease_is_renewed_although_its_stream_is_gone(topic, store, send, client):
    send(1)
    partition = LeasedPartition(topic, GROUP, store.acquire(0, "anna", TTL_MS), store)
    partition.create_group()
    _, batch = partition.settle_and_read([], 1)
    client.delete(topic.keys.stream(0))

    assert store.renew(partition.lease, TTL_MS, [(batch.messages[0].id, 1)])


def test_whatever_is_asked_of_a_server_that_is_unavailable_is_a_queue_error():
    with open_client("redis://127.0.0.1:1") as away:
        topic = Topic(client=away, name="orders", partition_count=1, layout="single")
        store = LeaseStore(topic, GROUP)
        partition = LeasedPartition(topic, GROUP, Lease(0, "anna", 1), store)

        for call in (
            lambda: store.acquire(0, "anna", TTL_MS),
            lambda: partition.take_over(None, 10),
            lambda: Waiting(topic, "orders", GROUP).for_new("0-0", 1),
            lambda: partition.settle_and_read([], 1),
            partition.create_group,
        ):
            with pytest.raises(QueueError):
                call()


def test_members_are_those_that_said_so_lately(store, clock):
    assert store.heartbeat("anna", 1_000) == {"anna": None}
    clock.now += 500
    assert store.heartbeat("ben", 1_000, 2) == {"anna": None, "ben": 2}
    clock.now += 500
    assert store.heartbeat("ben", 1_000) == {"ben": None}
    assert store.heartbeat("ben", 0) == {}


def test_a_dead_owner_and_a_dead_member_expire_although_the_servers_clock_was_set_back(topic, store, clock):
    """As by a failover to a replica whose clock is behind."""
    store.acquire(0, "anna", TTL_MS)
    store.heartbeat("anna", TTL_MS)
    other = LeaseStore(topic, GROUP, now_ms=clock)
    clock.now -= 100 * TTL_MS

    assert other.acquire(0, "ben", TTL_MS) is None
    assert sorted(other.heartbeat("ben", TTL_MS)) == ["anna", "ben"]
    clock.now += TTL_MS
    assert other.acquire(0, "ben", TTL_MS) is not None
    clock.now += 9 * TTL_MS
    assert other.heartbeat("ben", TTL_MS) == {"ben": None}


@pytest.mark.parametrize("call", ["read", "settle", "take_over", "take_due"])
def test_a_call_that_the_client_repeats_because_its_reply_was_lost_changes_nothing(
    topic, store, clock, send, call
):
    send(3)
    lease = store.acquire(0, "anna", TTL_MS)
    partition = LeasedPartition(topic, GROUP, lease, store)
    partition.create_group()
    _, batch = partition.settle_and_read([], 2)
    first, second = batch.messages
    partition.settle_and_read([Settlement("retry", first.id, 1, 0, "{}")], 0)
    # As after a reply that was lost: the owner begins again, and its client sends the first call twice.
    lease = store.acquire(0, "anna", TTL_MS)
    sent, sent_again = (LeasedPartition(topic, GROUP, lease, store) for _ in range(2))
    calls = {
        "read": lambda of: of.settle_and_read([], 1),
        "settle": lambda of: of.settle_and_read([Settlement("ack", second.id, 1)], 0),
        "take_over": lambda of: of.take_over(None, 10),
        "take_due": lambda of: of.take_due(10),
    }

    calls[call](sent)
    before = pending(topic)

    with pytest.raises(QueueError, match="reply was lost"):
        calls[call](sent_again)
    assert pending(topic) == before
