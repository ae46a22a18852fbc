"""The demo's business: an order is a message, a booked order is a row."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, func, insert, select

from conquiet.db import DbSession
from conquiet.queue import QueueConfig, QueueMessage, RedisStreamsQueue

STREAM = "orders"
GROUP = "billing"

#: No unique key on purpose: an order booked twice would show.
bookings = Table("bookings", MetaData(), Column("order_id", Integer), Column("cents", Integer))


@dataclass(frozen=True, slots=True)
class Booked:
    """What the database says in the end."""

    rows: int
    orders: int
    cents: int


def make_orders(count: int) -> list[dict[str, int]]:
    """The same orders each time."""
    prices = random.Random(7)  # noqa: S311 -- prices, not secrets
    return [{"order_id": number, "cents": prices.randint(100, 99_999)} for number in range(1, count + 1)]


def open_queue(url: str, consumer: str) -> RedisStreamsQueue:
    """The demo's queue; a worker that is silent for half a second counts as dead."""
    return RedisStreamsQueue.from_url(url, QueueConfig(STREAM, GROUP, consumer, claim_idle_ms=500))


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


def booked(engine: Engine) -> Booked:
    """Count what was committed."""
    columns = bookings.c
    statement = select(func.count(), func.count(columns.order_id.distinct()), func.sum(columns.cents))
    with engine.connect() as connection:
        rows, orders, cents = connection.execute(statement).one()
    return Booked(rows, orders, cents or 0)
