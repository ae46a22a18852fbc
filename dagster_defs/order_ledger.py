"""The business of the order pipeline: orders, and what each customer ordered in an hour, each kept once."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Integer,
    String,
    Table,
    func,
    insert,
    select,
    update,
)

from conquiet import DbSession, QueueMessage
from conquiet.mq import MqMessage
from dagster_defs.billing import metadata

orders = Table(
    "orders",
    metadata,
    Column("order_id", String(200), primary_key=True),
    Column("customer", String(50), nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("ordered_at", DateTime, nullable=False),
)
order_totals = Table(
    # Not the table of the Airflow DAG of this pipeline: both may drain the topic, each with its own group.
    "reported_totals",
    metadata,
    Column("customer", String(50), primary_key=True),
    Column("window_start", DateTime, primary_key=True),
    Column("orders", Integer, nullable=False),
    Column("cents", BigInteger, nullable=False),
)


def keep_order(msg: QueueMessage, session: DbSession) -> None:
    """One order, one transaction."""
    order = msg.payload
    session.execute(insert(orders), order | {"ordered_at": datetime.fromisoformat(order["ordered_at"])})


def keep_total(msg: MqMessage, session: DbSession) -> None:
    """The total of one customer and hour; one that counts fewer orders is older, and late."""
    total = {"orders": msg.payload["count"], "cents": msg.payload["sum_cents"]}
    customer, window_start = msg.payload["customer"], datetime.fromisoformat(msg.payload["window_start"])
    is_same = (order_totals.c.customer == customer) & (order_totals.c.window_start == window_start)
    known = session.execute(select(order_totals.c.orders).where(is_same)).scalar()
    if known is None:
        session.execute(insert(order_totals), {"customer": customer, "window_start": window_start} | total)
    elif known <= total["orders"]:
        session.execute(update(order_totals).where(is_same).values(total))


def sums(connection: Connection) -> tuple[tuple[int, int], tuple[int, int]]:
    """Orders and cents: of the orders, and of the totals."""
    of_orders = connection.execute(select(func.count(), func.coalesce(func.sum(orders.c.cents), 0))).one()
    of_totals = connection.execute(
        select(
            func.coalesce(func.sum(order_totals.c.orders), 0),
            func.coalesce(func.sum(order_totals.c.cents), 0),
        )
    ).one()
    return (int(of_orders[0]), int(of_orders[1])), (int(of_totals[0]), int(of_totals[1]))
