"""Trim: removes what every group has finished, and nothing else."""

from __future__ import annotations

import pytest

from conquiet import QueueError
from conquiet.mq import MqAdmin, TopicError, TopicPolicies
from tests.with_redis.mq.by_hand import Hand


@pytest.fixture
def admin(client):
    return MqAdmin(client)


@pytest.fixture
def broken(topic, client):
    """A topic whose stream is no stream."""
    client.set(topic.keys.stream(0), "no stream")
    yield topic
    client.delete(topic.keys.stream(0))


@pytest.fixture
def kept(topic):
    """The entry ids that the stream has."""

    def ids(partition=0):
        return [entry_id.decode() for entry_id, _ in topic.client.xrange(topic.keys.stream(partition))]

    return ids


def test_what_every_group_has_finished_is_removed_up_to_the_last_entry(topic, send, admin, kept):
    ids = send(10)
    for group in ("billing", "shipping"):
        hand = Hand(topic, group=group)
        hand.finish(hand.read())

    (trimmed,) = admin.trim(topic.name, retention_length=0)

    assert trimmed.removed == 9
    assert kept() == ids[-1:]


def test_what_one_group_has_not_read_stays(topic, send, admin, kept):
    ids = send(10)
    fast, slow = Hand(topic, group="billing"), Hand(topic, group="shipping")
    fast.finish(fast.read())
    slow.finish(slow.read(4))

    admin.trim(topic.name, retention_length=0)

    assert kept() == ids[3:]
    assert [msg.id for msg in slow.read()] == ids[4:]


def test_a_group_that_has_read_nothing_keeps_everything(topic, send, admin, kept):
    ids = send(5)
    fast = Hand(topic, group="billing")
    fast.finish(fast.read())
    Hand(topic, group="shipping")

    admin.trim(topic.name, retention_length=0)

    assert kept() == ids


def test_an_entry_that_is_pending_stays_although_later_ones_were_acked_first(topic, send, admin, kept):
    ids = send(10)
    hand = Hand(topic)
    messages = hand.read()
    hand.finish(messages[:2] + messages[3:])

    admin.trim(topic.name, retention_length=0)

    assert kept() == ids[2:]


def test_a_partition_where_a_group_of_the_topic_has_not_begun_is_left_alone(wide, producer, admin):
    producer.send_many(wide.name, [{"n": n} for n in range(40)])
    for partition in wide.partitions:
        hand = Hand(wide, partition, group="billing")
        hand.finish(hand.read())
    shipping = Hand(wide, 0, group="shipping")
    shipping.finish(shipping.read())
    lengths = [wide.client.xlen(wide.keys.stream(partition)) for partition in wide.partitions]

    first, *others = admin.trim(wide.name, retention_length=0)

    assert first.removed == lengths[0] - 1
    assert [(trim.removed, trim.missing_groups) for trim in others] == [(0, ("shipping",))] * 3


def test_a_stream_without_groups_keeps_everything(topic, send, admin, kept):
    ids = send(5)

    (trimmed,) = admin.trim(topic.name, retention_length=0)

    assert trimmed.removed == 0
    assert kept() == ids


def test_a_length_and_an_age_keep_what_either_wants_kept(topic, admin, client, kept):
    now_ms = client.time()[0] * 1000
    ages = [50_000, 40_000, 30_000, 20_000, 10_000]
    for age in ages:
        client.xadd(topic.keys.stream(0), {"data": "{}"}, id=f"{now_ms - age}-0")
    hand = Hand(topic)
    hand.finish(hand.read())

    admin.trim(topic.name, retention_length=1, retention_ms=45_000)
    after_age = len(kept())
    admin.trim(topic.name, retention_length=3, retention_ms=5_000)

    assert after_age == 4
    assert len(kept()) == 3


def test_the_policy_of_the_topic_is_the_default(topics, name, producer, admin):
    topic = topics.create(f"{name}-kept", policies=TopicPolicies(retention_length=4))
    producer.send_many(topic.name, [{"n": n} for n in range(10)])
    hand = Hand(topic)
    hand.finish(hand.read())

    (trimmed,) = admin.trim(topic.name)

    assert trimmed.removed == 6


def test_without_policy_and_retention_it_is_refused(topic, admin):
    with pytest.raises(TopicError, match="has no retention policy"):
        admin.trim(topic.name)


def test_many_entries_go_in_steps(topic, send, admin, kept):
    ids = send(1_700)
    hand = Hand(topic)
    hand.finish(hand.read(2_000))

    (trimmed,) = admin.trim(topic.name, retention_length=10)

    assert trimmed.removed == 1_690
    assert kept() == ids[-10:]


def test_ids_beyond_what_a_lua_number_holds_are_compared_right(topic, admin, client, kept):
    huge = 2**64 - 1
    ids = [f"7-{huge - 3}", f"7-{huge - 2}", f"7-{huge - 1}", f"7-{huge}"]
    for entry_id in ids:
        client.xadd(topic.keys.stream(0), {"data": "{}"}, id=entry_id)
    fast, slow = Hand(topic, group="billing"), Hand(topic, group="shipping")
    fast.finish(fast.read())
    slow.finish(slow.read(2)[:1])

    admin.trim(topic.name, retention_length=0)

    assert kept() == ids[1:]


def test_a_partition_that_nobody_sent_to_is_not_created(wide, admin, client):
    trims = admin.trim(wide.name, retention_length=0)

    assert [trim.removed for trim in trims] == [0] * 4
    assert not client.exists(*(wide.keys.stream(partition) for partition in wide.partitions))


def test_a_redis_failure_is_a_queue_error(broken, admin):
    with pytest.raises(QueueError, match="WRONGTYPE"):
        admin.trim(broken.name, retention_length=0)
