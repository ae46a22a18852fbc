"""A consumer in a thread of its own: started, waited for, stopped, and its error raised."""

from __future__ import annotations

import pytest

from conquiet.mq import PartitionConsumer, TopicError
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.consuming import GROUP, quick


def test_a_with_block_runs_the_consumer_and_stops_it(topic, send):
    seen: list[object] = []
    with PartitionConsumer(topic, GROUP, seen.append, config=quick()) as consumer:
        assert consumer.wait_until_owned(timeout_s=HANG_S)
        send(3)
        eventually(lambda: len(seen) == 3)

    assert consumer.owned == []
    assert consumer.join()


def test_what_ended_the_consumer_is_raised_by_join_and_at_the_end_of_the_block(topics, topic):
    consumer = PartitionConsumer(topic, GROUP, print, config=quick())
    consumer.start()
    assert consumer.wait_until_owned(timeout_s=HANG_S)
    topics.delete(topic.name)

    with pytest.raises(TopicError):
        consumer.join(timeout_s=HANG_S)
    assert not consumer.wait_until_owned()


def test_an_error_of_the_block_is_not_replaced_by_the_consumers(topics, topic):
    def delete_and_fail() -> None:
        with PartitionConsumer(topic, GROUP, print, config=quick()) as consumer:
            assert consumer.wait_until_owned(timeout_s=HANG_S)
            topics.delete(topic.name)
            eventually(lambda: consumer.owned == [])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        delete_and_fail()

    notes = getattr(caught.value, "__notes__", [])
    assert any("the consumer had ended: TopicError" in note for note in notes)


def test_a_consumer_is_started_once_and_joined_only_after_that(topic):
    consumer = PartitionConsumer(topic, GROUP, print, config=quick())
    with pytest.raises(RuntimeError, match="not started"):
        consumer.join()
    assert not consumer.wait_until_owned()
    with consumer, pytest.raises(RuntimeError, match="started before"):
        consumer.start()


def test_a_consumer_without_a_share_says_so_after_the_time(topic):
    with PartitionConsumer(topic, GROUP, print, config=quick()) as owner:
        assert owner.wait_until_owned(timeout_s=HANG_S)
        with PartitionConsumer(topic, GROUP, print, config=quick()) as other:
            assert not other.wait_until_owned(timeout_s=0.05)
