"""Strict order of a key, whichever of its messages waits for its retry and whichever comes back first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.mq import Envelope, MqMessage
from conquiet.mq.own.blocked_keys import BlockedKeys


def message(number: int, key: str | None = "anna", delivery_count: int = 1) -> MqMessage:
    return MqMessage(
        topic="orders",
        group="billing",
        partition=0,
        id=f"{number}-0",
        attempt=delivery_count,
        envelope=Envelope(topic="orders", partition=0, key=key, payload={"n": number}),
        delivery_count=delivery_count,
        stream="stream:topic:orders:p:0",
        data=b"{}",
    )


@pytest.fixture
def parking():
    return BlockedKeys()


def numbers(messages):
    return [msg.payload["n"] for msg in messages]


def test_only_what_comes_after_a_waiting_message_of_its_key_is_parked(parking):
    parking.block("5-0", "anna")

    assert parking.park(message(6))
    assert not parking.park(message(4))
    assert not parking.park(message(7, key="ben"))
    assert not parking.park(message(8, key=None))
    assert parking.size == 1


def test_a_message_without_a_key_holds_nobody_back(parking):
    parking.block("5-0", None)

    assert not parking
    assert not parking.park(message(6, key=None))


def test_a_head_that_comes_back_brings_what_waited_behind_it(parking):
    parking.block("5-0", "anna")
    parking.park(message(7))
    parking.park(message(6))

    assert numbers(parking.unblock("5-0", message(5))) == [5, 6, 7]
    assert not parking
    assert parking.size == 0


def test_a_later_head_that_is_due_first_waits_for_the_earlier_one(parking):
    for head in ("5-0", "6-0"):
        parking.block(head, "anna")
    parking.park(message(7))

    assert parking.unblock("6-0", message(6)) == []
    assert numbers(parking.unblock("5-0", message(5))) == [5, 6, 7]


def test_an_earlier_head_that_is_due_first_leaves_what_is_behind_the_later_one(parking):
    for head in ("5-0", "7-0"):
        parking.block(head, "anna")
    parking.park(message(6))
    parking.park(message(8))

    assert numbers(parking.unblock("5-0", message(5))) == [5, 6]
    assert numbers(parking) == [8]
    assert numbers(parking.unblock("7-0", message(7))) == [7, 8]


def test_a_head_that_is_gone_frees_its_key(parking):
    parking.block("5-0", "anna")
    parking.park(message(6))

    assert numbers(parking.unblock("5-0")) == [6]


def test_what_never_waited_comes_back_alone(parking):
    assert numbers(parking.unblock("5-0", message(5))) == [5]
    assert parking.unblock("6-0") == []


def test_a_second_delivery_takes_the_place_of_the_first(parking):
    parking.block("5-0", "anna")
    for _ in range(2):
        parking.park(message(6))
        parking.park(message(7, delivery_count=2))
        parking.park(message(5))

    assert parking.size == 3
    assert numbers(parking.unblock("5-0", message(5, delivery_count=2))) == [5, 6, 7]


@given(st.permutations(range(8)), st.sets(st.integers(0, 7), min_size=1))
def test_in_whatever_order_heads_come_back_the_key_keeps_its_order_and_loses_nothing(order, heads):
    parking = BlockedKeys()
    for head in heads:
        parking.block(f"{head}-0", "anna")
    handled = [n for n in range(8) if n not in heads and not parking.park(message(n))]

    for head in (n for n in order if n in heads):
        handled += numbers(parking.unblock(f"{head}-0", message(head)))

    assert handled == list(range(8))
    assert parking.size == 0


def test_no_more_is_read_when_too_many_are_parked(parking):
    parking.block("1-0", "anna")
    parking.park(message(2))

    assert parking.is_full(1)
    assert not parking.is_full(2)


def test_of_what_is_parked_little_content_stays_in_memory(parking):
    parking.block("1-0", "anna")
    for number in range(2, 102):
        parking.park(replace(message(number), data=b"x" * 10_000))
    parking.park(replace(message(102), data=b"x" * (32 << 20)))

    assert sum(len(msg.data) for msg in parking) <= 256 << 10
    freed = parking.unblock("1-0", replace(message(1), data=b"x" * (32 << 20)))
    assert [msg.id for msg in freed] == [f"{number}-0" for number in range(1, 103)]
    # What is to be handled next is not loaded a second time.
    assert freed[0].is_loaded
    assert not freed[-1].is_loaded
    parking.block("1-0", "anna")
    parking.park(replace(message(2), data=b"x" * (256 << 10)))
    assert all(msg.is_loaded for msg in parking)


def test_a_head_that_waits_on_behind_an_earlier_one_keeps_no_large_content(parking):
    for head in ("5-0", "6-0"):
        parking.block(head, "anna")

    parking.unblock("6-0", replace(message(6), data=b"x" * (32 << 20)))

    assert [msg.is_loaded for msg in parking] == [False]
