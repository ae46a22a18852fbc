"""What an operator does to a group loses nothing: reset, prune, delete."""

from __future__ import annotations

import pytest

from conquiet import DrainLimits, drain
from conquiet.mq import MqAdmin, Retry, RetryPolicy, TopicError, drain_partition
from conquiet.mq.own.leases import LeaseStore
from tests.eventually import eventually
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP, pending, quick, wait_until_finished


@pytest.fixture
def admin(client):
    return MqAdmin(client)


def consumers(topic, partition=0, group=GROUP):
    infos = topic.client.xinfo_consumers(topic.keys.stream(partition), group)
    return sorted(info["name"].decode() for info in infos)


def last_delivered(topic, partition=0):
    (info,) = topic.client.xinfo_groups(topic.keys.stream(partition))
    return info["last-delivered-id"].decode()


def test_a_reset_keeps_the_pending_list_and_delivers_again(topic, send, admin):
    ids = send(6)
    hand = Hand(topic)
    messages = hand.read(4)
    hand.finish(messages[:3])
    before = pending(topic)

    (told,) = admin.reset_group(topic.name, GROUP, ids[1])
    (done,) = admin.reset_group(topic.name, GROUP, ids[1], dry_run=False)

    assert told == done
    assert (done.last_delivered_id, done.delivered_again, done.skipped) == (ids[3], 3, 0)
    assert pending(topic) == before == {ids[3]: ("worker-1", 1)}
    assert [msg.id for msg in hand.read()] == ids[1:]


def test_a_dry_run_is_the_default_and_moves_nothing(topic, send, admin):
    ids = send(6)
    Hand(topic).read(2)

    (told,) = admin.reset_group(topic.name, GROUP, "end")

    assert (told.delivered_again, told.skipped) == (0, 4)
    assert last_delivered(topic) == ids[1]


def test_a_group_is_reset_to_the_start_the_end_or_a_time(topic, admin, client):
    ids = ["1000-0", "1000-1", "2000-0", "3000-0"]
    for entry_id in ids:
        client.xadd(topic.keys.stream(0), {"data": "{}"}, id=entry_id)
    hand = Hand(topic)

    def next_ids(to):
        admin.reset_group(topic.name, GROUP, to, dry_run=False)
        return [msg.id for msg in hand.read()]

    assert next_ids("start") == ids
    assert next_ids("end") == []
    assert next_ids(1_000) == ids
    assert next_ids(1_001) == ids[2:]
    assert next_ids("1000-1") == ids[1:]
    assert next_ids("0-0") == ids


def test_more_than_is_counted_is_unknown(topic, send, admin):
    send(20)
    Hand(topic)

    (told,) = admin.reset_group(topic.name, GROUP, "end", count_limit=19)

    assert (told.delivered_again, told.skipped) == (0, None)


def test_a_reset_reaches_partitions_where_the_group_has_not_begun(wide, producer, admin):
    Hand(wide, 0)
    for partition in (0, 1):
        producer.send(wide.name, {}, partition=partition)

    resets = admin.reset_group(wide.name, GROUP, "end", dry_run=False)

    assert [(reset.partition, reset.skipped) for reset in resets] == [(0, 1), (1, 1), (2, 0), (3, 0)]
    assert Hand(wide, 1).read() == []


def test_only_consumers_without_pending_entries_that_are_not_alive_are_pruned(topic, send, admin, client):
    stream = topic.keys.stream(0)
    send(1)
    Hand(topic, owner="holds").read()
    client.delete(topic.keys.lease(GROUP, 0))
    Hand(topic, owner="owns")
    LeaseStore(topic, GROUP).heartbeat("member", 60_000)
    for name in ("owns", "member", "dead-1", "dead-2"):
        client.xgroup_createconsumer(stream, GROUP, name)

    told = admin.prune_consumers(topic.name, GROUP, dry_run=True)
    pruned = admin.prune_consumers(topic.name, GROUP)

    assert (
        [consumer.name for consumer in told] == [consumer.name for consumer in pruned] == ["dead-1", "dead-2"]
    )
    assert consumers(topic) == ["holds", "member", "owns"]
    assert len(pending(topic)) == 1


def test_a_group_with_pending_messages_is_deleted_only_by_force(topic, send, admin, client):
    send(2)
    hand = Hand(topic)
    hand.read()
    hand.let_go()

    with pytest.raises(TopicError, match="2 messages of partition 0 are pending"):
        admin.delete_group(topic.name, GROUP)
    kept = pending(topic)
    admin.delete_group(topic.name, GROUP, force=True)

    assert len(kept) == 2
    assert client.xinfo_groups(topic.keys.stream(0)) == []
    assert not client.exists(topic.keys.lease(GROUP, 0))


def test_a_group_that_is_kept_is_kept_in_every_partition(wide, producer, admin):
    for partition in wide.partitions:
        producer.send(wide.name, {}, partition=partition)
    hands = [Hand(wide, partition) for partition in wide.partitions]
    for hand in hands:
        messages = hand.read()
        hand.finish(messages if hand.leased.partition < 2 else [])
        hand.let_go()

    with pytest.raises(TopicError, match="1 messages of partition 2 are pending"):
        admin.delete_group(wide.name, GROUP)

    (stats,) = admin.groups(wide.name)
    assert [partition.pending for partition in stats.partitions] == [0, 0, 1, 1]
    assert all(partition.last_delivered_id for partition in stats.partitions)


def test_a_group_whose_messages_wait_as_copies_is_deleted_only_by_force(
    topic, send, admin, producer, start, client
):
    send(3)
    producer.send(topic.name, {}, delay_ms=60_000)
    later = quick(retry_mode="requeue")
    groups = ("send", "send-2")
    running = [start(topic, lambda _: Retry(60_000), group=group, config=later) for group in groups]
    eventually(lambda: client.zcard(topic.keys.delayed(0)) == 7)
    for consumer in running:
        consumer.stop()

    with pytest.raises(TopicError, match="3 messages wait as copies for their retry"):
        admin.delete_group(topic.name, "send")
    kept = client.zcard(topic.keys.delayed(0))
    admin.delete_group(topic.name, "send", force=True)

    assert kept == 7
    names = [name.decode() for name in client.zrange(topic.keys.delayed(0), 0, -1)]
    assert sum(name.startswith("send-2:") for name in names) == 3
    assert sorted(names) == sorted(map(bytes.decode, client.hkeys(topic.keys.delayed_items(0))))
    assert len(names) == 4
    assert [stats.group for stats in admin.groups(topic.name)] == ["send-2"]


def test_a_group_with_live_members_is_not_deleted(topic, admin):
    Hand(topic)
    LeaseStore(topic, GROUP).heartbeat("worker-1", 60_000)

    with pytest.raises(TopicError, match="worker-1 work for it"):
        admin.delete_group(topic.name, GROUP)

    assert len(admin.groups(topic.name)) == 1


def test_a_group_is_not_deleted_while_a_partition_of_it_has_an_owner(topic, admin):
    hand = Hand(topic, owner="drain-7")

    with pytest.raises(TopicError, match="drain-7 work for it"):
        admin.delete_group(topic.name, GROUP)
    hand.let_go()
    admin.delete_group(topic.name, GROUP)

    assert admin.groups(topic.name) == []


def test_a_group_of_a_plain_stream_is_not_deleted_while_a_drain_of_it_lives(
    admin, queue, engine, client, stream
):
    queue.enqueue({"n": 1})
    found = []

    def delete_meanwhile(_msg, _session):
        found.extend(admin.owners(stream, "billing").drains)
        with pytest.raises(TopicError, match="worker-1 work for it"):
            admin.delete_group(stream, "billing")

    drain(queue, delete_meanwhile, engine, DrainLimits(idle_ms=20))
    assert found == ["worker-1"]
    admin.delete_group(stream, "billing")

    assert admin.owners(stream, "billing").live == frozenset()
    assert client.keys(f"*{stream}*drains*") == []


def test_a_group_that_nobody_reads_any_more_is_released_and_no_longer_keeps_entries(
    topic, send, admin, start
):
    send(10)
    admin.create_group(topic, "abandoned")
    start(topic, lambda _msg: None)
    wait_until_finished(topic)
    assert [trim.removed for trim in admin.trim(topic, retention_length=1)] == [0]

    admin.delete_group(topic, "abandoned")

    assert [trim.removed for trim in admin.trim(topic, retention_length=1)] == [9]


def test_a_drain_and_a_consumer_leave_no_name_behind(topic, send, start):
    send(1)
    for number in range(3):
        drain_partition(topic, 0, GROUP, lambda _msg: None, config=quick(consumer_name=f"run-{number}"))
    running = start(topic, lambda _msg: None, config=quick(consumer_name="worker"))
    eventually(lambda: running.consumer.owned == [0])
    start.end()

    assert consumers(topic) == []


def test_a_name_with_something_pending_stays_until_that_is_finished(topic, send, start):
    send(1)
    config = quick(
        consumer_name="failing", retry=RetryPolicy(base_delay_ms=100_000_000, max_delay_ms=100_000_000)
    )
    drain_partition(topic, 0, GROUP, lambda _msg: Retry(reason="later"), config=config)

    assert consumers(topic) == ["failing"]
    assert len(pending(topic)) == 1


def test_the_next_owner_forgets_the_names_of_dead_ones(topic, send):
    send(3)
    topic.client.xgroup_create(topic.keys.stream(0), GROUP, "0")
    for number in range(3):
        topic.client.xreadgroup(GROUP, f"dead-{number}", {topic.keys.stream(0): ">"}, count=1)

    report = drain_partition(topic, 0, GROUP, lambda _msg: None, config=quick(consumer_name="next"))

    assert (report.handled, consumers(topic)) == (3, [])
