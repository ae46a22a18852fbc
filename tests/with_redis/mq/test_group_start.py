"""Where a group begins that nobody has created before."""

from __future__ import annotations

import pytest

from conquiet import DrainLimits
from conquiet.mq import ConsumerConfig, Message, MqAdmin, Producer, Topics, drain_partition, drain_topic
from tests.eventually import eventually
from tests.with_redis.mq.consuming import GROUP, Seen, quick, wait_until_finished


def fill(producer, topic, numbers):
    return producer.send_many(
        topic.name, [Message(payload={"n": n}, partition=n % topic.partition_count) for n in numbers]
    )


def drained(topic, start):
    seen = Seen()
    drain_topic(topic, GROUP, seen, limits=DrainLimits(idle_ms=20), config=ConsumerConfig(group_start=start))
    return sorted(seen.numbers())


@pytest.mark.parametrize("end", ["end", "$"])
def test_a_new_group_begins_at_the_end_in_all_partitions_at_one_moment(wide, producer, end):
    fill(producer, wide, range(8))
    # One partition alone is drained: the group has begun in the others, too.
    drain_partition(wide, 0, GROUP, Seen(), limits=DrainLimits(idle_ms=20), config=quick(group_start=end))
    fill(producer, wide, range(8, 16))

    assert drained(wide, end) == list(range(8, 16))


def test_a_new_group_begins_with_an_entry_or_at_a_time(topic, send):
    ids = send(6)
    assert drained(topic, ids[3]) == [3, 4, 5]

    MqAdmin(topic.client).delete_group(topic, GROUP)
    assert drained(topic, int(ids[0].partition("-")[0])) == list(range(6))


def test_for_a_group_that_is_there_it_means_nothing(wide, producer):
    fill(producer, wide, range(8))
    assert MqAdmin(wide.client).create_group(wide, GROUP)

    assert not MqAdmin(wide.client).create_group(wide, GROUP, "end")
    assert drained(wide, "end") == list(range(8))


def test_a_partition_that_is_added_later_is_read_from_its_beginning(wide, topics, producer, start):
    fill(producer, wide, range(4))
    seen = Seen()
    running = start(wide, seen, config=quick(group_start="end"))
    eventually(lambda: len(running.consumer.owned) == 4)
    grown = topics.grow(wide.name, 5)
    Producer(wide.client).send_many(grown, [Message(payload={"n": 99}, partition=4)])
    wait_until_finished(grown)

    assert seen.numbers() == [99]


def test_a_consumer_of_a_plain_stream_begins_at_the_end(client, stream, producer, start):
    client.xadd(stream, {"data": b'{"n": 1}'})
    seen = Seen()
    plain = Topics(client).open(stream)
    running = start(plain, seen, config=quick(group_start="end"))
    eventually(lambda: running.consumer.owned == [0])
    eventually(lambda: client.xinfo_groups(stream))
    client.xadd(stream, {"data": b'{"n": 2}'})
    eventually(lambda: seen.numbers() == [2])


def test_a_group_of_a_plain_stream_is_created_before_its_first_drain(client, make_queue, stream):
    client.xadd(stream, {"data": b'{"n": 1}'})
    assert MqAdmin(client).create_group(stream, "billing", "end")
    queue = make_queue()
    queue.enqueue({"n": 2})

    assert [msg.payload["n"] for msg in queue.read(50, 10)] == [2]


@pytest.mark.parametrize("at", ["beginning", "", -1, True, 1.5, "5-x"])
def test_a_position_that_is_none_is_refused(at):
    with pytest.raises(ValueError, match=r"position|entry id"):
        ConsumerConfig(group_start=at)
