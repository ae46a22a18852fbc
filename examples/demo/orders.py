"""The business of the short demo: an order is a message, a booked order is a row."""

from __future__ import annotations

import random
import time

from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, func, insert, select

from conquiet.db import DbSession
from conquiet.queue import QueueConfig, QueueMessage, RedisStreamsQueue

STREAM = "orders"
GROUP = "billing"
#: A worker that is silent for half a second counts as dead.
CLAIM_IDLE_MS = 500

#: No unique key on purpose: an order booked twice would show.
bookings = Table("bookings", MetaData(), Column("order_id", Integer), Column("cents", Integer))


def make_orders(count: int) -> list[dict[str, int]]:
    """The same orders each time."""
    prices = random.Random(7)  # noqa: S311 -- prices, not secrets
    return [{"order_id": number, "cents": prices.randint(100, 99_999)} for number in range(1, count + 1)]


def open_queue(url: str, consumer: str) -> RedisStreamsQueue:
    """The queue of the orders, as one consumer sees it."""
    return RedisStreamsQueue.from_url(url, QueueConfig(STREAM, GROUP, consumer, claim_idle_ms=CLAIM_IDLE_MS))


def open_database(path: str) -> Engine:
    """SQLite in WAL mode, so that the demo can count while the workers write."""
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def use_wal(connection, _record):  # type: ignore[no-untyped-def]  # SQLAlchemy's listeners are untyped
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    return engine


def book(msg: QueueMessage, session: DbSession) -> None:
    """The handler: one order, one row, one transaction."""
    time.sleep(0.001)  # the work that a real handler would do
    session.execute(insert(bookings), msg.payload)


def count_booked(engine: Engine) -> int:
    """How many orders were committed."""
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(bookings)).scalar_one())
