"""Reads and claims of the plain queue are bounded by bytes, whatever count they are asked for."""

from __future__ import annotations

import pytest

from conquiet.queue.batch_size import BATCH_BYTES

LARGE = {"text": "x" * (1 << 20)}


@pytest.fixture
def queue(make_queue):
    queue = make_queue("worker-1")
    queue.enqueue_many([LARGE] * 40, batch_size=10)
    return queue


def test_a_read_of_a_hundred_brings_as_many_large_messages_as_one_read_may(queue):
    read = []
    while messages := queue.read(10, count=100):
        assert sum(len(msg.data) for msg in messages) < BATCH_BYTES + 2 * len(messages[0].data)
        read += [msg.id for msg in messages]

    assert len(set(read)) == len(read) == 40


def test_a_claim_of_a_hundred_brings_as_many_large_messages_as_one_read_may(queue, make_queue):
    while queue.read(10, count=100):
        pass
    successor, claimed = make_queue("worker-2"), []

    while messages := successor.claim_stale(0, count=100):
        assert sum(len(msg.data) for msg in messages) < BATCH_BYTES + 2 * len(messages[0].data)
        claimed += [msg.id for msg in messages]
        for msg in messages:
            successor.ack(msg)

    assert len(set(claimed)) == len(claimed) == 40


def test_the_next_page_of_a_claim_begins_where_its_bytes_ended(queue, make_queue):
    while queue.read(10, count=100):
        pass
    successor, claimed, after = make_queue("worker-2"), [], None

    while (page := successor.claim_page(0, 100, after=after))[1] is not None:
        delivery, after = page
        claimed += [msg.id for msg in delivery.messages]

    assert claimed == sorted(claimed)
    assert len(set(claimed)) == len(claimed) == 40


def test_what_a_dead_consumer_left_is_taken_over_as_far_as_one_read_may(queue, make_queue):
    while queue.read(10, count=100):
        pass
    successor, taken, after = make_queue("worker-2"), [], None

    while (page := successor.take_page("worker-1", 100, after=after))[1] is not None:
        delivery, after = page
        assert sum(len(msg.data) for msg in delivery.messages) < BATCH_BYTES + (2 << 20)
        taken += [msg.id for msg in delivery.messages]

    assert len(set(taken)) == len(taken) == 40


def test_stale_messages_are_claimed_by_id_for_another_consumer_whatever_their_size(queue, make_queue):
    while queue.read(10, count=100):
        pass

    claimed = make_queue("worker-2").claim_ids(0, 30)

    assert len(set(claimed)) == len(claimed) == 30
