"""The handler: alone, and when its process dies."""

import pytest
from shop.billing import bill, bills, tables
from sqlalchemy import func, select

from conquiet.testing import deliver, survives_crashes

ORDERS = [{"order_id": f"o-{number}", "cents": 100 * number} for number in range(1, 4)]


def total(engine):
    with engine.connect() as connection:
        return connection.scalar(select(func.sum(bills.c.cents)))


def test_an_order_becomes_a_bill(conquiet_database):
    tables.create_all(conquiet_database)

    deliver(bill, {"order_id": "o-1", "cents": 500}, conquiet_database)

    assert total(conquiet_database) == 500


def test_an_order_that_costs_less_than_nothing_is_refused(conquiet_database):
    tables.create_all(conquiet_database)

    with pytest.raises(ValueError, match="less than nothing"):
        deliver(bill, {"order_id": "o-1", "cents": -1}, conquiet_database)

    assert total(conquiet_database) is None


@survives_crashes(bill, ORDERS, tables=tables)
def test_every_order_is_billed_once_wherever_the_worker_dies(engine):
    assert total(engine) == 600
