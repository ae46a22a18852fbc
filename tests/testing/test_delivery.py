"""`deliver`: what a handler does with one message, without a server."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, select

from conquiet import Ack, DeadLetter, Retry
from conquiet.mq import Message, MqMessage
from conquiet.testing import deliver, deliver_batch
from tests.testing.shop import OutOfStockError, bill, bill_all, bills, tables

ORDER = {"order_id": 1, "cents": 500}


@pytest.fixture
def shop(conquiet_database: Engine) -> Engine:
    tables.create_all(conquiet_database)
    return conquiet_database


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(select(bills.c.order_id)))


def test_a_handler_is_given_the_message_in_a_transaction_that_commits(shop):
    assert deliver(bill, ORDER, shop) == Ack()

    assert orders(shop) == [1]


def test_what_a_handler_raises_leaves_deliver_and_rolls_back(shop):
    with pytest.raises(OutOfStockError):
        deliver(bill, {**ORDER, "then": "raise"}, shop)

    assert orders(shop) == []


def test_an_answer_is_returned_and_has_rolled_back(shop):
    answers = [deliver(bill, {**ORDER, "then": then}, shop) for then in ("retry", "refuse")]

    assert answers == [Retry(delay_ms=500), DeadLetter("no such order")]
    assert orders(shop) == []


def test_a_batch_handler_is_given_its_messages_in_one_transaction(shop):
    assert deliver_batch(bill_all, [ORDER, {**ORDER, "order_id": 2}], shop) == [Ack(), Ack()]
    with pytest.raises(OutOfStockError):
        deliver_batch(bill_all, [ORDER, {**ORDER, "then": "raise"}], shop)

    assert orders(shop) == [1, 2]


def test_each_call_is_another_message_for_an_inbox(shop):
    for _ in range(2):
        deliver(bill, ORDER, shop, inbox=True)

    assert orders(shop) == [1, 1]


def test_a_message_of_a_topic_has_key_headers_and_attempt():
    seen: list[MqMessage] = []

    sent = Message(payload=ORDER, key="customer-1", headers={"source": "shop"})
    deliver(seen.append, sent, topic="orders", attempt=3)

    (msg,) = seen
    assert (msg.topic, msg.key, msg.headers, msg.attempt) == ("orders", "customer-1", {"source": "shop"}, 3)
    assert (msg.payload, msg.source.payload["payload"]) == (ORDER, ORDER)


def test_a_payload_that_redis_could_not_carry_is_refused_as_by_enqueue():
    with pytest.raises(TypeError, match=r"payload\['cents'\] is a Decimal"):
        deliver(print, {"cents": Decimal(5)})


def test_a_handler_of_the_wrong_arity_is_refused(shop):
    with pytest.raises(TypeError, match="without an engine"):
        deliver(bill, ORDER)


@dataclass
class Order:
    order_id: int
    cents: Decimal


def test_a_payload_of_a_type_comes_out_as_it_does_of_a_drain(shop):
    seen: list[Order] = []

    deliver(
        lambda msg, session: seen.append(msg.payload), Order(1, Decimal("5.00")), shop, payload_type=Order
    )

    assert seen == [Order(1, Decimal("5.00"))]


def test_an_async_handler_is_awaited():
    seen: list[Any] = []

    async def note(msg):
        seen.append(msg.payload)

    assert deliver(note, ORDER) == Ack()
    assert seen == [ORDER]
