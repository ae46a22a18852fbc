"""`async def` handlers: an AsyncSession each, in an event loop of the drain; all else as with plain ones."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from conquiet import (
    DeadLetter,
    DrainError,
    DrainLimits,
    Inbox,
    PayloadTypeError,
    QueueMessage,
    RedisStreamsQueue,
    Retry,
    batch_handler,
    drain,
)
from conquiet.consume import dead_letter_stream
from conquiet.errors import HandlerCancelledError
from conquiet.logs import MessageFilter
from conquiet.mq import (
    ConsumerConfig,
    MqMessage,
    PartitionConsumer,
    Producer,
    RetryPolicy,
    Topics,
    drain_topic,
)
from tests.eventually import eventually
from tests.with_databases.conftest import only_on
from tests.with_databases.consuming import async_engine_of, pending, redeliver
from tests.with_databases.tables import Account, balances, effects, notes

LIMITS = DrainLimits(idle_ms=50)


@dataclass
class Order:
    number: int
    price: Decimal


@pytest.fixture
def awaiting(db: Engine) -> AsyncEngine:
    """An AsyncEngine on the database of this test."""
    return async_engine_of(db)


async def write_id(msg: QueueMessage, session: AsyncSession) -> None:
    await session.execute(insert(effects), {"entry_id": msg.id, "note": msg.id})


def loops() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "conquiet-event-loop"]


def test_each_message_is_committed_and_acked_and_its_loop_ends(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    ids = valkey_queue.enqueue_many([{}] * 5)

    first = drain(valkey_queue, write_id, awaiting, LIMITS, inbox=True)
    redeliver(valkey_queue)
    second = drain(valkey_queue, write_id, awaiting, LIMITS, inbox=True)

    assert (first.handled, second.handled, second.skipped) == (5, 0, 5)
    assert (notes(db), pending(valkey_queue), loops()) == (ids, 0, [])


def test_what_a_failed_handler_wrote_is_rolled_back(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    first, _second = valkey_queue.enqueue_many([{"fails": False}, {"fails": True}])

    async def handler(msg: QueueMessage, session: AsyncSession) -> None:
        await write_id(msg, session)
        if msg.payload["fails"]:
            raise ValueError("no such customer")

    with pytest.raises(DrainError, match="no such customer"):
        drain(valkey_queue, handler, awaiting, LIMITS, inbox=True)

    assert (notes(db), pending(valkey_queue)) == ([first], 1)


@pytest.mark.parametrize("answer", [Retry(), DeadLetter("no")])
def test_what_a_handler_wrote_that_answers_is_rolled_back(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue, answer: Retry | DeadLetter
):
    valkey_queue.enqueue({})

    async def handler(msg: QueueMessage, session: AsyncSession) -> Retry | DeadLetter:
        await write_id(msg, session)
        return answer

    if isinstance(answer, Retry):
        with pytest.raises(DrainError):
            drain(valkey_queue, handler, awaiting, LIMITS)
    else:
        assert drain(valkey_queue, handler, awaiting, LIMITS).dead_lettered == 1

    assert notes(db) == []


def test_objects_of_the_session_are_flushed_and_its_commit_leaves_the_transaction_to_the_drain(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    valkey_queue.enqueue_many([{"id": 1}, {"id": 2}])

    async def handler(msg: QueueMessage, session: AsyncSession) -> None:
        session.add(Account(msg.payload["id"], 10))
        await session.commit()
        if msg.payload["id"] == 2:
            raise ValueError("after its commit")

    with pytest.raises(DrainError, match="after its commit"):
        drain(valkey_queue, handler, awaiting, LIMITS)

    assert (balances(db), pending(valkey_queue)) == ({1: 10}, 1)


@only_on("postgres", "mariadb")
def test_as_many_as_allowed_are_in_handlers_at_once_in_one_thread(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    ids = valkey_queue.enqueue_many([{"n": n} for n in range(12)])
    inside, most, threads = 0, 0, set()
    together = asyncio.Barrier(4)

    async def handler(msg: QueueMessage, session: AsyncSession) -> None:
        nonlocal inside, most
        threads.add(threading.get_ident())
        inside += 1
        most = max(most, inside)
        await together.wait()
        await write_id(msg, session)
        inside -= 1

    limits = DrainLimits(idle_ms=50, concurrency=4, order_by=False, max_messages=12)
    drain(valkey_queue, handler, awaiting, limits, inbox=True)

    assert (most, len(threads), pending(valkey_queue)) == (4, 1, 0)
    assert notes(db) == sorted(ids)


def test_messages_of_a_key_are_handled_in_order_beside_others(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    valkey_queue.enqueue_many([{"customer": n % 3, "n": n} for n in range(30)])
    seen: dict[int, list[int]] = defaultdict(list)
    inside: set[int] = set()

    async def handler(msg: QueueMessage, _session: AsyncSession) -> None:
        customer = msg.payload["customer"]
        assert customer not in inside
        inside.add(customer)
        await asyncio.sleep(0)
        seen[customer].append(msg.payload["n"])
        inside.discard(customer)

    drain(valkey_queue, handler, awaiting, DrainLimits(idle_ms=50, concurrency=8, order_by="customer"))

    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert sum(map(len, seen.values())) == 30


def test_more_handlers_than_the_pool_has_connections_take_turns(db: Engine, valkey_queue: RedisStreamsQueue):
    ids = valkey_queue.enqueue_many([{}] * 20)
    narrow = async_engine_of(db, pool_size=1, max_overflow=0)

    drain(valkey_queue, write_id, narrow, DrainLimits(idle_ms=50, concurrency=4, order_by=False), inbox=True)

    assert (notes(db), pending(valkey_queue)) == (sorted(ids), 0)


def test_a_batch_is_one_transaction(db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue):
    ids = valkey_queue.enqueue_many([{}] * 5)
    sizes = []

    @batch_handler
    async def handler(messages: list[QueueMessage], session: AsyncSession) -> None:
        sizes.append(len(messages))
        for msg in messages:
            await write_id(msg, session)

    drain(valkey_queue, handler, awaiting, LIMITS, inbox=True)

    assert (notes(db), pending(valkey_queue), sum(sizes)) == (ids, 0, 5)
    assert max(sizes) > 1


def test_a_cancelled_handler_is_a_failed_message_and_not_the_end(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    valkey_queue.enqueue_many([{"n": 1}, {"n": 2}])

    async def handler(msg: QueueMessage, session: AsyncSession) -> None:
        await write_id(msg, session)
        if msg.payload["n"] == 1:
            raise asyncio.CancelledError

    with pytest.raises(DrainError) as raised:
        drain(valkey_queue, handler, awaiting, LIMITS)

    assert [type(one.error) for one in raised.value.failures] == [HandlerCancelledError]
    assert (len(notes(db)), pending(valkey_queue)) == (1, 1)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_interrupt_is_no_attempt_and_ends_the_drain(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue, concurrency: int
):
    valkey_queue.enqueue_many([{"n": n} for n in range(6)])

    async def handler(msg: QueueMessage, session: AsyncSession) -> None:
        await write_id(msg, session)
        if msg.payload["n"] == 2:
            raise KeyboardInterrupt

    limits = DrainLimits(idle_ms=50, concurrency=concurrency, order_by=False)
    with pytest.raises(KeyboardInterrupt):
        drain(valkey_queue, handler, awaiting, limits, inbox=True)
    again = drain(valkey_queue, write_id, awaiting, limits, inbox=True)

    assert (len(notes(db)), pending(valkey_queue), loops()) == (6, 0, [])
    assert again.dead_lettered == again.failed == 0


def test_connections_of_another_event_loop_are_refused_with_the_remedy(
    awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    async def use() -> None:
        async with awaiting.connect():
            """The pool has it then."""

    async def clean_up() -> None:
        await awaiting.dispose()

    with asyncio.Runner() as runner:
        runner.run(use())
        with pytest.raises(ValueError, match=r"connections of another event loop.*engine\.dispose\(\)"):
            drain(valkey_queue, write_id, awaiting, LIMITS, inbox=True)
        runner.run(clean_up())


def test_a_line_that_a_handler_logs_names_its_message(
    awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue, caplog: pytest.LogCaptureFixture
):
    ids = valkey_queue.enqueue_many([{}] * 4)
    caplog.handler.addFilter(MessageFilter())
    log = logging.getLogger("shop")

    async def handler(msg: QueueMessage, _session: AsyncSession) -> None:
        await asyncio.sleep(0.01)
        log.warning("%s", msg.id)

    drain(valkey_queue, handler, awaiting, DrainLimits(idle_ms=50, concurrency=4, order_by=False))

    records = [record for record in caplog.records if record.name == "shop"]
    assert sorted(record.getMessage() for record in records) == ids
    assert all(record.getMessage() == record.message_id for record in records)  # type: ignore[attr-defined]


def test_a_payload_comes_as_its_type_and_one_that_does_not_fit_becomes_a_dead_letter(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    valkey_queue.enqueue_many([Order(1, Decimal("1.10")), {"number": "x", "price": "1"}])
    seen = []

    async def handler(msg: QueueMessage[Order], _session: AsyncSession) -> None:
        seen.append(msg.payload)

    def handle_plainly(msg: QueueMessage[Order], _session: object) -> None:
        seen.append(msg.payload)

    with pytest.raises(DrainError) as raised:
        drain(valkey_queue, handler, awaiting, LIMITS, payload=Order)
    with pytest.raises(DrainError):
        drain(valkey_queue, handle_plainly, db, LIMITS, payload=Order)
    report = drain(valkey_queue, handler, awaiting, DrainLimits(idle_ms=50, max_deliveries=2), payload=Order)

    (failure,) = raised.value.failures
    assert isinstance(failure.error, PayloadTypeError)
    assert failure.error.path == ".number"
    assert seen == [Order(1, Decimal("1.10"))]
    assert (report.dead_lettered, pending(valkey_queue)) == (1, 0)
    assert valkey_queue.client.xlen(dead_letter_stream(valkey_queue.config.stream_key)) == 1


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_consumer_of_a_topic_handles_each_message_once(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue, stream: str, concurrency: int
):
    topic = Topics(valkey_queue.client).create(stream.replace(":", "-"), 2)
    producer = Producer(valkey_queue.client)
    for number in range(20):
        producer.send(topic, Order(number, Decimal(number)), key=str(number % 5))
    attempts: dict[int, int] = defaultdict(int)

    async def handler(msg: MqMessage[Order], session: AsyncSession) -> None:
        number = msg.payload.number
        attempts[number] += 1
        await session.execute(insert(effects), {"entry_id": msg.id, "note": f"{number:02}"})
        if number == 7 and attempts[number] == 1:
            raise ValueError("not yet")

    config = ConsumerConfig(retry=RetryPolicy(base_delay_ms=0), concurrency=concurrency, payload=Order)
    with PartitionConsumer(topic, "billing", handler, awaiting, inbox=True, config=config):
        eventually(lambda: len(notes(db)) == 20)

    assert notes(db) == [f"{number:02}" for number in range(20)]
    assert (attempts[7], loops()) == (2, [])


def test_a_drain_of_a_topic_without_a_database_awaits_its_handler(
    valkey_queue: RedisStreamsQueue, stream: str
):
    topic = Topics(valkey_queue.client).create(stream.replace(":", "-"), 2)
    Producer(valkey_queue.client).send_many(topic, [{"n": n} for n in range(6)])
    seen = []

    async def handler(msg: MqMessage) -> None:
        await asyncio.sleep(0)
        seen.append(msg.payload["n"])

    drain_topic(topic, "billing", handler, None, DrainLimits(idle_ms=50, concurrency=2))

    assert (sorted(seen), loops()) == ([*range(6)], [])


def test_an_inbox_row_is_part_of_the_transaction(
    db: Engine, awaiting: AsyncEngine, valkey_queue: RedisStreamsQueue
):
    valkey_queue.enqueue({})
    inbox = Inbox()

    async def fail(msg: QueueMessage, session: AsyncSession) -> None:
        await write_id(msg, session)
        raise ValueError("no such customer")

    with pytest.raises(DrainError):
        drain(valkey_queue, fail, awaiting, LIMITS, inbox=inbox)
    report = drain(valkey_queue, write_id, awaiting, LIMITS, inbox=inbox)

    assert (report.handled, report.skipped, len(notes(db))) == (1, 0, 1)
