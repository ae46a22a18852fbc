"""What a user may write with conquiet, in strict types; `test_types.py` has two type checkers read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import pydantic
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from conquiet import (
    Ack,
    AsyncQueue,
    DbSession,
    DeadLetter,
    DrainError,
    DrainLimits,
    DrainReport,
    EmbeddedServer,
    Inbox,
    QueueConfig,
    QueueMessage,
    RedisStreamsQueue,
    Retry,
    StandardCodec,
    batch_handler,
    drain,
    open_client,
)
from conquiet.mq import (
    AsyncProducer,
    ConsumerConfig,
    MqMessage,
    PartitionConsumer,
    Producer,
    RetryPolicy,
    Topics,
    drain_topic,
)
from conquiet.queue import open_async_client
from conquiet.tasks import TaskApp, TaskHandle
from conquiet.testing import deliver, survives_crashes

engine = create_engine("sqlite:///bills.db")
app = TaskApp(database=engine)


def bill(msg: QueueMessage, session: DbSession) -> None:
    session.execute(text("INSERT INTO bills VALUES (:order_id)"), {"order_id": msg.payload["order_id"]})


@dataclass
class Order:
    order_id: int
    cents: int


class Booking(TypedDict):
    seats: int


class Invoice(pydantic.BaseModel):
    cents: int


def charge(msg: QueueMessage[Order], session: DbSession) -> None:
    cents: int = msg.payload.cents
    session.execute(text("INSERT INTO bills VALUES (:order_id)"), {"order_id": cents})


async def charge_awaiting(msg: QueueMessage[Order], session: AsyncSession) -> None:
    await session.execute(text("INSERT INTO bills VALUES (:id)"), {"id": msg.payload.order_id})


def invoice(msg: MqMessage[Invoice], session: DbSession) -> None:
    session.execute(text("INSERT INTO bills VALUES (:order_id)"), {"order_id": msg.payload.cents})


async def send_later(url: str, order: Order) -> str:
    async with open_async_client(url) as client:
        await AsyncProducer(client).send("shipments", order, key="ann")
        await AsyncProducer(client).send_many("shipments", [order, {"order_id": 2}])
        return await AsyncQueue(client, "orders").enqueue(order)


@survives_crashes(charge, [Order(1, 100)], tables=lambda engine: None, payload_type=Order)
def test_an_order_is_charged_once(engine: object) -> None:
    assert engine


def test_an_order_is_charged() -> None:
    deliver(charge, Order(1, 100), payload_type=Order, engine=engine)


def typed(queue: RedisStreamsQueue, more: Mapping[str, object]) -> DrainReport:
    booking: Booking = {"seats": 2}
    queue.enqueue(Order(1, 100))
    queue.enqueue_many([Invoice(cents=100), Order(2, 200), {"order_id": 3}])
    queue.enqueue(more)
    queue.enqueue(booking)
    drain(queue, charge_awaiting, create_async_engine("sqlite+aiosqlite://"), payload=Order)
    return drain(queue, charge, engine, DrainLimits(max_messages=1), payload=Order, inbox=True)


def ship(msg: MqMessage, session: DbSession) -> Ack | Retry | DeadLetter:
    if msg.attempt > 3:
        return DeadLetter("no courier")
    return Ack() if msg.key else Retry(delay_ms=1_000)


@batch_handler
def load(messages: list[QueueMessage], session: DbSession) -> None:
    session.execute(text("INSERT INTO bills VALUES (:order_id)"), [dict(one.payload) for one in messages])


@app.task(max_retries=5)
def price(quantity: int, cents: int) -> int:
    return quantity * cents


def main() -> int:
    with EmbeddedServer() as server:
        config = QueueConfig("orders", "billing", "worker-1")
        with RedisStreamsQueue.from_url(server.url, config) as queue:
            queue.enqueue({"order_id": 1})
            try:
                report: DrainReport = drain(queue, bill, engine, DrainLimits(max_messages=10), inbox=Inbox())
            except DrainError as error:
                report = error.report
        client = open_client(server.url)
        topic = Topics(client).create("shipments", partitions=2)
        Producer(client).send("shipments", {"order_id": 1}, key="ann")
        settings = ConsumerConfig(retry=RetryPolicy(max_attempts=3, retry_on=(ValueError,)))
        Producer(client, codec=StandardCodec()).send("shipments", Order(1, 100), key="ann")
        drain_topic(topic, "invoices", invoice, engine, config=ConsumerConfig(payload=Invoice))
        consumer = PartitionConsumer(topic, "couriers", ship, engine, config=settings)
        consumer.stop()
    handle: TaskHandle = price.enqueue(quantity=2, cents=100)
    print(handle.id, price(2, 100) + 1)
    return report.handled
