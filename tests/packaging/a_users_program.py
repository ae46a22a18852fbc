"""What a user may write with conquiet, in strict types; `test_types.py` has two type checkers read it."""

from __future__ import annotations

from sqlalchemy import create_engine, text

from conquiet import (
    Ack,
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
    batch_handler,
    drain,
    open_client,
)
from conquiet.mq import ConsumerConfig, MqMessage, PartitionConsumer, Producer, RetryPolicy, Topics
from conquiet.tasks import TaskApp, TaskHandle

engine = create_engine("sqlite:///bills.db")
app = TaskApp(database=engine)


def bill(msg: QueueMessage, session: DbSession) -> None:
    session.execute(text("INSERT INTO bills VALUES (:order_id)"), {"order_id": msg.payload["order_id"]})


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
        consumer = PartitionConsumer(topic, "couriers", ship, engine, config=settings)
        consumer.stop()
    handle: TaskHandle = price.enqueue(quantity=2, cents=100)
    print(handle.id, price(2, 100) + 1)
    return report.handled
