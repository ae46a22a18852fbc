"""Trim: removes what every group has finished, and nothing else."""

from __future__ import annotations

from functools import partial

import pytest

from conquiet import QueueError
from conquiet.mq import MqAdmin, TopicError, TopicPolicies, Topics
from tests.eventually import eventually
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP, Seen, metric


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


def test_what_a_group_is_given_again_after_a_reset_stays_although_a_later_entry_is_pending(
    topic, send, admin
):
    ids = send(10)
    hand = Hand(topic)
    hand.finish(hand.read()[:9])
    admin.reset_group(topic.name, GROUP, ids[4], dry_run=False)

    admin.trim(topic.name, retention_length=0)

    assert [msg.id for msg in hand.read()] == ids[4:]


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


def test_a_partition_without_a_stream_gets_none(wide, admin, client):
    client.delete(*(wide.keys.stream(partition) for partition in wide.partitions))

    trims = admin.trim(wide.name, retention_length=0)

    assert [trim.removed for trim in trims] == [0] * 4
    assert not client.exists(*(wide.keys.stream(partition) for partition in wide.partitions))


def test_a_redis_failure_is_a_queue_error(broken, admin):
    with pytest.raises(QueueError, match="WRONGTYPE"):
        admin.trim(broken.name, retention_length=0)


@pytest.fixture
def trimmed(topics, name):
    """A topic whose consumers keep ten entries, and look once a second."""
    return topics.create(f"{name}-trimmed", 1, TopicPolicies(retention_length=10, trim_every_s=1))


def test_consumers_trim_by_the_policy_and_only_what_every_group_has_finished(
    trimmed, producer, start, client
):
    ids = producer.send_many(trimmed.name, [{"n": n} for n in range(100)])
    stream = trimmed.keys.stream(0)
    slow = Hand(trimmed, group="shipping", owner="slow")
    slow.finish(slow.read(30))
    held = slow.read(5)
    start(trimmed, Seen())

    # Counted after the step that trims.
    eventually(lambda: metric("conquiet_mq_trimmed_total", topic=trimmed.name, partition="0") == 30)
    slow.finish(held[1:])
    assert (client.xlen(stream), client.xrange(stream, count=1)[0][0].decode()) == (70, ids[30])
    slow.finish(held[:1])

    eventually(lambda: client.xrange(stream, count=1)[0][0].decode() == ids[34])
    slow.finish(slow.read(100))
    eventually(lambda: client.xlen(stream) == 10)
    assert client.xrange(stream, count=1)[0][0].decode() == ids[90]


def test_a_topic_without_a_policy_that_says_so_is_never_trimmed_by_consumers(
    topic, topics, name, trimmed, producer, start, client
):
    by_hand = topics.create(f"{name}-by-hand", 1, TopicPolicies(retention_length=1))
    for each in (topic, by_hand, trimmed):
        producer.send_many(each.name, [{"n": n} for n in range(50)])
        start(each, Seen())

    for _ in range(2):
        eventually(lambda: client.xlen(trimmed.keys.stream(0)) == 10)
        producer.send_many(trimmed.name, [{"n": n} for n in range(20)])
    eventually(lambda: client.xlen(trimmed.keys.stream(0)) == 10)

    assert [client.xlen(each.keys.stream(0)) for each in (topic, by_hand)] == [50, 50]


def test_a_topic_that_cannot_be_trimmed_is_consumed_all_the_same(
    trimmed, producer, start, client, server_url, caplog
):
    client.execute_command("ACL", "SETUSER", "no-trim", "on", ">secret", "~*", "&*", "+@all", "-xtrim")
    url = server_url.replace("redis://", "redis://no-trim:secret@")
    seen = Seen()

    with type(client).from_url(url) as restricted:
        running = start(Topics(restricted).open(trimmed.name), seen)
        producer.send_many(trimmed.name, [{"n": n} for n in range(30)])
        eventually(lambda: "could not be trimmed" in caplog.text)
        producer.send_many(trimmed.name, [{"n": n} for n in range(30, 60)])
        eventually(lambda: len(seen) == 60)
        running.stop()

    client.execute_command("ACL", "DELUSER", "no-trim")
    assert client.xlen(trimmed.keys.stream(0)) == 60


def test_a_policy_that_trims_must_say_what_it_keeps():
    with pytest.raises(ValueError, match="trim_every_s needs"):
        TopicPolicies(trim_every_s=60)


def test_a_topic_without_groups_is_trimmed_when_asked_and_only_then(wide, producer, admin, client):
    producer.send_many(wide.name, [{"n": n} for n in range(40)])
    trim = partial(admin.trim, wide.name, retention_length=3)

    assert sum(part.removed for part in trim()) == 0
    assert sum(part.removed for part in trim(without_groups=True, dry_run=True)) == 28
    assert sum(part.removed for part in trim(without_groups=True)) == 28
    assert [client.xlen(wide.keys.stream(partition)) for partition in wide.partitions] == [3] * 4

    # With one group, anywhere, the others wait for it as ever.
    client.xgroup_create(wide.keys.stream(0), GROUP, "0-0")
    assert sum(part.removed for part in admin.trim(wide.name, retention_length=0, without_groups=True)) == 0
