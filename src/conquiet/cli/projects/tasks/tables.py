"""The table of bills; `python -m tables` makes it."""

from __future__ import annotations

import os

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine

tables = MetaData()
bills = Table("bills", tables, Column("order_id", String(100)), Column("cents", Integer))

engine = create_engine(os.environ.get("CONQUIET_DATABASE_URL", "sqlite:///shop.db"))

if __name__ == "__main__":
    tables.create_all(engine)
