"""MqAdmin: looks that change nothing, and changes that lose nothing."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import redis

from conquiet import QueueError
from conquiet.mq import DeadLetters, MqAdmin, TopicError, Topics
from conquiet.mq.own.leases import LeaseStore
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP, pending


@pytest.fixture
def admin(client):
    return MqAdmin(client)


@pytest.fixture
def broken(topic, client):
    """A topic whose stream is no stream."""
    client.set(topic.keys.stream(0), "no stream")
    yield topic
    client.delete(topic.keys.stream(0))


def consumers(topic, partition=0, group=GROUP):
    infos = topic.client.xinfo_consumers(topic.keys.stream(partition), group)
    return sorted(info["name"].decode() for info in infos)


def calls_of(client):
    return {
        name.removeprefix("cmdstat_"): stats["calls"] for name, stats in client.info("commandstats").items()
    }


def test_topics_tell_their_length_ids_and_times(wide, topic, producer, admin):
    first = producer.send(wide.name, {}, partition=2)
    producer.send(wide.name, {}, partition=0)
    last = producer.send(wide.name, {}, partition=2)

    by_name = {stats.name: stats for stats in admin.topics()}

    stats = by_name[wide.name]
    assert (stats.partitions, stats.length, stats.lengths) == (4, 3, (1, 0, 2, 0))
    assert (stats.first_id, stats.last_id) == (first, last)
    assert stats.updated_at_ms >= stats.created_at_ms == wide.created_at_ms
    assert (by_name[topic.name].length, by_name[topic.name].first_id) == (0, None)


def test_a_group_is_told_per_partition_and_in_sum(wide, producer, admin):
    ids = [producer.send(wide.name, {"n": n}, partition=n % 2) for n in range(10)]
    even, odd = Hand(wide, 0, owner="a"), Hand(wide, 1, owner="b")
    even.finish(even.read(1))
    odd.read(2)

    (stats,) = admin.groups(wide.name)

    assert (stats.topic, stats.group, stats.pending, stats.lag) == (wide.name, GROUP, 2, 4 + 3)
    assert stats.consumers == ("a", "b")
    assert [partition.last_delivered_id for partition in stats.partitions] == [ids[0], ids[3], None, None]
    assert [partition.pending for partition in stats.partitions] == [0, 2, 0, 0]
    assert stats.oldest_pending_age_ms is not None
    assert stats.oldest_undelivered_age_ms >= stats.partitions[1].oldest_undelivered_age_ms


def test_lag_is_in_messages_and_none_where_nobody_knows(wide, producer, admin, client):
    producer.send_many(wide.name, [{"n": n} for n in range(400)])
    for partition in wide.partitions:
        Hand(wide, partition).read(1)
    (known,) = admin.groups(wide.name)
    middle = client.xrange(wide.keys.stream(2))[20][0]
    client.xdel(wide.keys.stream(2), middle)

    (counted,) = admin.groups(wide.name, count_limit=1_000)
    (unknown,) = admin.groups(wide.name, count_limit=5)

    assert known.lag == 396
    assert counted.lag == 395
    assert counted.partitions[2].lag_source == "counted"
    assert unknown.partitions[2].lag is unknown.lag is None


def test_a_partition_where_the_group_has_not_begun_counts_as_lag(wide, producer, admin):
    Hand(wide, 0)
    producer.send_many(wide.name, [{"n": n} for n in range(40)])

    (stats,) = admin.groups(wide.name)

    assert stats.lag == 40
    assert [partition.lag_source == "length" for partition in stats.partitions] == [False, True, True, True]


def test_pending_by_id_is_merged_and_pages_reach_every_entry(wide, producer, admin):
    messages = [{"n": n} for n in range(1_300)]
    producer.send_many(wide.name, messages)
    held = [msg for partition in wide.partitions for msg in Hand(wide, partition).read(2_000)]

    seen: list[Any] = []
    cursor = None
    while not seen or cursor:
        page = admin.pending(wide.name, GROUP, limit=97, cursor=cursor, sort="id")
        seen += [(tuple(map(int, entry.id.split("-"))), entry.partition) for entry in page.entries]
        cursor = page.cursor

    assert seen == sorted(seen)
    assert len(seen) == len(set(seen)) == len(held) == 1_300


def test_pending_is_sorted_by_deliveries_or_idle_time_over_all_partitions(wide, producer, admin, client):
    ids = [producer.send(wide.name, {"n": n}, partition=n) for n in range(4)]
    for partition in wide.partitions:
        Hand(wide, partition, owner=f"worker-{partition}").read()
    for n, (deliveries, idle_ms) in enumerate([(2, 5_000), (9, 1_000), (1, 9_000), (5, 7_000)]):
        stream = wide.keys.stream(n)
        client.xclaim(stream, GROUP, f"worker-{n}", 0, [ids[n]], retrycount=deliveries, idle=idle_ms)

    by_deliveries = admin.pending(wide.name, GROUP, sort="deliveries").entries
    first = admin.pending(wide.name, GROUP, sort="idle", limit=3)
    second = admin.pending(wide.name, GROUP, sort="idle", limit=3, cursor=first.cursor)
    idle_only = admin.pending(wide.name, GROUP, min_idle_ms=6_000).entries

    assert [(entry.partition, entry.deliveries) for entry in by_deliveries] == [
        (1, 9),
        (3, 5),
        (0, 2),
        (2, 1),
    ]
    assert [entry.partition for entry in (*first.entries, *second.entries)] == [2, 3, 0, 1]
    assert second.cursor is None
    assert first.is_complete
    assert [entry.consumer for entry in idle_only] == ["worker-2", "worker-3"]


def test_an_entry_behind_many_others_is_found(topic, send, admin, client):
    ids = send(1_100)
    Hand(topic).read(2_000)
    client.xclaim(topic.keys.stream(0), GROUP, "worker-1", 0, [ids[-1]], retrycount=9, idle=60_000)

    by_idle, by_deliveries = (
        admin.pending(topic.name, GROUP, sort=sort, limit=1).entries for sort in ("idle", "deliveries")
    )

    assert [entry.id for entry in (*by_idle, *by_deliveries)] == [ids[-1]] * 2
    assert len(admin.pending(topic.name, GROUP, sort="id", limit=2_000).entries) == 1_100


def test_owners_tell_who_holds_what_and_who_is_alive(wide, admin, client):
    Hand(wide, 1, owner="a")
    leases = LeaseStore(wide, GROUP)
    leases.heartbeat("a", 60_000)
    leases.heartbeat("b", 60_000)
    LeaseStore(wide, GROUP, now_ms=lambda: 1_000).acquire(2, "expired", 5_000)

    owners = admin.owners(wide.name, GROUP)

    now_ms = client.time()[0] * 1000
    assert [partition.owner for partition in owners.partitions] == [None, "a", None, None]
    held = owners.partitions[1]
    assert held.epoch == 1
    assert held.since_ms - 2_000 < now_ms < held.expires_at_ms
    assert [member.name for member in owners.members] == ["a", "b"]
    assert all(now_ms < member.expires_at_ms for member in owners.members)


def test_looking_changes_nothing_and_creates_nothing(wide, producer, admin, client):
    producer.send(wide.name, {}, partition=0)
    producer.send(wide.name, {}, partition=1)
    Hand(wide, 0, owner="a").read()
    before = {key: client.dump(key) for key in client.keys(f"*{wide.name}*")}
    counts = pending(wide)

    admin.topics()
    admin.groups(wide.name)
    admin.pending(wide.name, GROUP)
    admin.owners(wide.name, GROUP)
    admin.reset_group(wide.name, GROUP, "start")
    admin.prune_consumers(wide.name, GROUP, dry_run=True)

    assert {key: client.dump(key) for key in client.keys(f"*{wide.name}*")} == before
    assert pending(wide) == counts
    assert consumers(wide) == ["a"]


def test_nothing_is_searched_for_among_all_keys(wide, producer, admin, client):
    producer.send(wide.name, {}, partition=0)
    Hand(wide, 0).read()
    before = calls_of(client)

    admin.topics()
    admin.groups(wide.name)
    admin.pending(wide.name, GROUP)
    admin.prune_consumers(wide.name, GROUP)
    admin.trim(wide.name, retention_length=0)
    admin.delete_group(wide.name, GROUP, force=True)

    after = calls_of(client)
    assert [after.get(name) for name in ("scan", "keys")] == [before.get(name) for name in ("scan", "keys")]


def test_a_topic_or_group_that_is_not_there_is_told(topic, send, admin):
    send(1)
    missing = f"nothing-{uuid.uuid4().hex}"

    for call in (admin.groups, admin.topic, lambda name: admin.trim(name, retention_length=0)):
        with pytest.raises(TopicError, match="neither a topic nor a stream"):
            call(missing)
    for call in (admin.pending, admin.prune_consumers, admin.delete_group):
        with pytest.raises(TopicError, match="has no group 'nobody'; its groups: none"):
            call(topic.name, "nobody")
    with pytest.raises(TopicError, match="has no group 'nobody'"):
        admin.reset_group(topic.name, "nobody", "end")


def test_a_plain_stream_is_a_topic_of_one_partition(stream, client, admin):
    client.xadd(stream, {"data": "{}"})
    client.xgroup_create(stream, GROUP, "0")

    (stats,) = admin.groups(stream)

    assert (admin.topic(stream).length, stats.lag) == (1, 1)
    client.delete(stream)


def test_a_redis_failure_is_a_queue_error(broken, admin):
    for call in (admin.groups, admin.topic):
        with pytest.raises(QueueError, match="WRONGTYPE"):
            call(broken.name)


@pytest.mark.parametrize("settings", [{"protocol": 2}, {"protocol": 3}, {"decode_responses": True}])
def test_every_kind_of_client_sees_the_same(server_url, settings, topic, send, admin):
    send(3)
    Hand(topic).give_up(count=1)
    LeaseStore(topic, GROUP).heartbeat("worker-1", 60_000)
    with redis.Redis.from_url(server_url, **settings) as other_client:
        other = MqAdmin(other_client)

        assert other.topic(topic.name) == admin.topic(topic.name)
        assert other.owners(topic.name, GROUP) == admin.owners(topic.name, GROUP)
        assert other.reset_group(topic.name, GROUP, "end") == admin.reset_group(topic.name, GROUP, "end")
        assert [group.lag for group in other.groups(topic.name)] == [2]
        assert other.pending(topic.name, GROUP, sort="id").entries == ()
        (letter,) = DeadLetters(Topics(other_client).open(topic.name)).list().letters
        assert letter.payload == {"n": 0}
