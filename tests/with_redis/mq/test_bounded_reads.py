"""Reads of a part of what is there: pending entries by a filter, the newest dead letters."""

from __future__ import annotations

import pytest

from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue
from conquiet.mq import DeadLetter, DeadLetters, MqAdmin, Producer, Topics, drain_partition
from tests.eventually import eventually


@pytest.fixture
def thirty(client, stream):
    """Thirty pending entries of two consumers."""
    for name, count in (("one", 10), ("two", 20)):
        with RedisStreamsQueue(client, QueueConfig(stream, "billing", name, block_ms=20)) as queue:
            queue.enqueue_many({"n": n} for n in range(count))
            assert len(queue.read(20, count=count)) == count
    eventually(lambda: all(entry.idle_ms > 1 for entry in MqAdmin(client).pending(stream, "billing").entries))
    return MqAdmin(client)


@pytest.mark.parametrize("sort", ["id", "idle", "deliveries"])
def test_a_filter_that_may_read_a_part_says_so(thirty, stream, sort):
    some = thirty.pending(stream, "billing", sort=sort, min_idle_ms=1, most_read=20, limit=15)
    rest = thirty.pending(
        stream, "billing", sort=sort, min_idle_ms=1, most_read=20, limit=15, cursor=some.cursor
    )
    none = thirty.pending(stream, "billing", sort=sort, min_idle_ms=10**9, most_read=20)
    all_of_them = thirty.pending(stream, "billing", sort=sort, min_idle_ms=1, most_read=30)

    assert (len(some.entries), some.is_complete) == (15, False)
    assert (len(rest.entries), rest.cursor) == (5, None)
    assert len({entry.id for entry in (*some.entries, *rest.entries)}) == 20
    assert (none.entries, none.is_complete) == ((), False)
    assert (len(all_of_them.entries), all_of_them.is_complete) == (30, True)


@pytest.mark.parametrize("sort", ["id", "idle"])
def test_those_of_one_consumer(thirty, stream, sort):
    found = thirty.pending(stream, "billing", sort=sort, consumer="one").entries

    assert {entry.consumer for entry in found} == {"one"}
    assert len(found) == 10
    assert thirty.pending(stream, "billing", sort=sort, consumer="nobody").entries == ()


def test_the_newest_dead_letters_come_first_and_page_by_page(client, stream):
    topic = Topics(client).create(stream.replace(":", "-"), partitions=2)
    Producer(client).send_many(topic, [{"n": n} for n in range(12)])
    for partition in topic.partitions:
        drain_partition(topic, partition, "g", lambda _: DeadLetter("no"), limits=DrainLimits(idle_ms=20))
    letters = DeadLetters(topic)
    oldest_first = [letter.id for letter in letters.list().letters]

    found, after = [], None
    while True:
        page = letters.list(limit=5, newest_first=True, after=after)
        found += [letter.id for letter in page.letters]
        after = page.after
        if after is None:
            break

    assert found == list(reversed(oldest_first))
    assert len(found) == 12


def test_a_search_of_dead_letters_ends_after_as_many_as_it_may_read(client, stream):
    topic = Topics(client).create(stream.replace(":", "-"))
    Producer(client).send_many(topic, [{"n": n} for n in range(12)])
    drain_partition(topic, 0, "g", lambda _: DeadLetter("no"), limits=DrainLimits(idle_ms=20))
    letters = DeadLetters(topic)

    page = letters.list(error_type="Nowhere", most_read=5)

    assert page.letters == ()
    assert page.after == letters.list(limit=5).letters[-1].id
