"""The business: an order becomes a row of the table `bills`, once."""

from __future__ import annotations

from sqlalchemy import Column, DateTime, Integer, MetaData, String, Table, func, insert

from conquiet import DbSession, QueueMessage

metadata = MetaData()
bills = Table(
    "bills",
    metadata,
    Column("order_id", String(100), nullable=False),
    Column("cents", Integer, nullable=False),
    Column("billed_at", DateTime, server_default=func.now(), nullable=False),
)


def bill(msg: QueueMessage, session: DbSession) -> None:
    """One message, one transaction; it commits when this returns."""
    order = msg.payload
    if order["cents"] < 0:
        raise ValueError(f"order {order['order_id']} costs less than nothing")
    session.execute(insert(bills), {"order_id": order["order_id"], "cents": order["cents"]})
