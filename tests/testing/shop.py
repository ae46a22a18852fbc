"""Handlers of these tests, good ones and some that do not survive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from conquiet import (
    DbSession,
    DeadLetter,
    QueueMessage,
    Retry,
    StandardCodec,
    StreamWriter,
    batch_handler,
    open_client,
)
from conquiet.db.engine import open_engine

tables = MetaData()
bills = Table("bills", tables, Column("order_id", Integer), Column("cents", Integer))


class OutOfStockError(Exception):
    """What a handler raises."""


def bill(msg: QueueMessage, session: DbSession) -> Retry | DeadLetter | None:
    """One row for each order; some payloads are refused."""
    session.execute(insert(bills), {name: msg.payload[name] for name in ("order_id", "cents")})
    match msg.payload.get("then"):
        case "raise":
            raise OutOfStockError(msg.payload["order_id"])
        case "retry":
            return Retry(delay_ms=500)
        case "refuse":
            return DeadLetter("no such order")
    return None


@batch_handler
def bill_all(messages: list[QueueMessage], session: DbSession) -> None:
    """The same for many orders in one transaction."""
    for msg in messages:
        bill(msg, session)


async def bill_awaited(msg: QueueMessage, session: AsyncSession) -> None:
    """One row for each order, by a driver that awaits."""
    await session.execute(insert(bills), msg.payload)


@dataclass
class Order:
    """As a program has it, with an amount that JSON does not have."""

    order_id: int
    euros: Decimal


class Renamed(StandardCodec):
    """Another name on the wire."""

    def encode(self, value: Any, /) -> Mapping[str, Any]:
        written = super().encode(value)
        return {"id": written["order_id"], "euros": written["euros"]}

    def decode(self, payload_type: Any, payload: dict[str, Any], /) -> Any:
        return super().decode(payload_type, {"order_id": payload["id"], "euros": payload["euros"]})


def bill_typed(msg: QueueMessage[Order], session: DbSession) -> None:
    """One row for each order, of its type."""
    cents = int(msg.payload.euros * 100)
    session.execute(insert(bills), {"order_id": msg.payload.order_id, "cents": cents})


def bill_beside(msg: QueueMessage, session: DbSession) -> None:
    """Commits in a connection of its own: a crash before the session's commit doubles the row."""
    engine = open_engine(session.connection.engine.url.render_as_string(hide_password=False))
    with engine.begin() as connection:
        connection.execute(
            insert(bills), {"order_id": msg.payload["order_id"], "cents": msg.payload["cents"]}
        )
    engine.dispose()


def bill_and_enqueue(msg: QueueMessage, session: DbSession) -> None:
    """Also enqueues, several messages in one round trip, and a large one, which is not copied to be sent."""
    bill(msg, session)
    with open_client(os.environ["SHOP_REDIS_URL"]) as client:
        writer = StreamWriter(client, "invoices")
        writer.enqueue_many({"order_id": msg.payload["order_id"], "page": page} for page in range(3))
        writer.enqueue({"order_id": msg.payload["order_id"], "scan": "x" * 300_000})


def fail(msg: QueueMessage, session: DbSession) -> None:
    """Fails by itself."""
    raise OutOfStockError(msg.payload["order_id"])
