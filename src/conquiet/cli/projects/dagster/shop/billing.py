"""The business: an order becomes a row of the table `bills`, once."""

from __future__ import annotations

import os

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

from conquiet import DbSession, QueueMessage

tables = MetaData()
bills = Table("bills", tables, Column("order_id", String(100)), Column("cents", Integer))


def bill(msg: QueueMessage, session: DbSession) -> None:
    """One message, one transaction: it commits when this returns, and the message is acked after that."""
    order = msg.payload
    if order["cents"] < 0:
        raise ValueError(f"order {order['order_id']} costs less than nothing")
    session.execute(insert(bills), {"order_id": order["order_id"], "cents": order["cents"]})


if __name__ == "__main__":
    tables.create_all(create_engine(os.environ["CONQUIET_DATABASE_URL"]))
