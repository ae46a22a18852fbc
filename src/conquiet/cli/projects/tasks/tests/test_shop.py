"""The tasks, run as a worker does, on a private server and with a clock that the test moves."""

import pytest
from shop import app, bill, greet
from sqlalchemy import func, select
from tables import bills, engine, tables

from conquiet.testing import TaskTestBed


@pytest.fixture
def bed():
    tables.drop_all(engine)
    tables.create_all(engine)
    with TaskTestBed(app) as opened:
        yield opened


def total():
    with engine.connect() as connection:
        return connection.scalar(select(func.sum(bills.c.cents)))


def test_a_task_is_still_a_function():
    assert greet("Ann") == "Hello Ann"


def test_an_order_is_billed(bed):
    handle = bill.enqueue("o-1", 500)

    bed.run_until_idle()

    assert handle.result() == 500
    assert total() == 500


def test_an_order_that_costs_less_than_nothing_fails_after_its_retries(bed):
    handle = bill.enqueue("o-1", -1)

    for _ in range(4):
        bed.run_until_idle()
        bed.move_clock(hours=1)

    assert handle.status().state == "dead_lettered"
    assert total() is None
