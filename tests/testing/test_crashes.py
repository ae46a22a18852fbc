"""`survives_crashes`: it passes what survives, and finds what does not, with the command that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pytest
from sqlalchemy import Engine, select

from conquiet.testing import survives_crashes
from tests.services import database
from tests.testing.shop import (
    Order,
    Renamed,
    bill,
    bill_all,
    bill_and_enqueue,
    bill_awaited,
    bill_beside,
    bill_typed,
    bills,
    fail,
    tables,
)

ORDERS = [{"order_id": number, "cents": 100 * number} for number in (1, 2, 3)]
REFUSED = {"order_id": 4, "cents": 1, "then": "refuse"}


def billed(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return sorted(connection.scalars(select(bills.c.order_id)))


@survives_crashes(bill, [*ORDERS, REFUSED], tables=tables)
def test_every_order_is_billed_once_wherever_the_worker_dies(engine):
    assert billed(engine) == [1, 2, 3]


@survives_crashes(bill_all, ORDERS, tables=tables.create_all)
def test_every_order_of_a_batch_is_billed_once_wherever_the_worker_dies(engine):
    assert billed(engine) == [1, 2, 3]


@survives_crashes(bill_awaited, ORDERS, tables=tables)
def test_every_order_of_an_async_handler_is_billed_once_wherever_the_worker_dies(engine):
    assert billed(engine) == [1, 2, 3]


@survives_crashes(bill, ORDERS, tables=tables, inbox=False, faults=["crash"])
def test_without_an_inbox_no_order_is_lost(engine):
    assert {*billed(engine)} == {1, 2, 3}


TYPED = [Order(number, Decimal(number)) for number in (1, 2, 3)]


@survives_crashes(bill_typed, TYPED, tables=tables, payload_type=Order)
def test_every_order_of_a_typed_handler_is_billed_once_wherever_the_worker_dies(engine):
    assert billed(engine) == [1, 2, 3]


@survives_crashes(
    bill_typed, TYPED, tables=tables, faults=["crash"], payload_type=("tests.testing.shop:Order", Renamed())
)
def test_every_order_of_a_codec_is_billed_once_wherever_the_worker_dies(engine):
    assert billed(engine) == [1, 2, 3]


class TestInAClass:
    expected = (1, 2, 3)

    @survives_crashes(bill, ORDERS, tables=tables, faults=["lost_answer"])
    def test_a_method_has_its_instance(self, engine):
        assert billed(engine) == list(self.expected)


def each_once(engine: Engine) -> None:
    assert billed(engine) == [1, 2, 3], "an order is billed twice"


def test_without_an_inbox_a_row_that_is_written_twice_is_found():
    test = survives_crashes(bill, ORDERS, tables=tables, inbox=False, faults=["crash"])(each_once)

    with pytest.raises(AssertionError, match=r"crash after command \d+ \(sql COMMIT\): .*billed twice"):
        test()


def test_a_handler_that_commits_beside_its_session_is_found():
    test = survives_crashes(bill_beside, ORDERS, tables=tables, inbox=False, faults=["crash"])(each_once)

    with pytest.raises(AssertionError, match="commands are not survived"):
        test()


def test_a_handler_that_enqueues_many_messages_and_large_ones_is_explored(conquiet_server, monkeypatch):
    monkeypatch.setenv("SHOP_REDIS_URL", conquiet_server.url)

    @survives_crashes(bill_and_enqueue, ORDERS[:1], tables=tables, faults=["crash"])
    def test(engine: Engine) -> None:
        assert billed(engine) == [1]

    test()


def test_a_handler_that_fails_without_a_crash_is_told_apart():
    test = survives_crashes(fail, ORDERS, tables=tables)(each_once)

    with pytest.raises(AssertionError, match="fails without any crash") as caught:
        test()

    assert "DrainError" in str(caught.value)


def test_a_check_that_fails_without_a_crash_fails_as_it_is():
    test = survives_crashes(bill, ORDERS[:2], tables=tables)(each_once)

    with pytest.raises(AssertionError, match=r"^an order is billed twice"):
        test()


def test_a_drain_with_too_many_commands_is_refused():
    test = survives_crashes(bill, ORDERS, tables=tables, max_points=5)(each_once)

    with pytest.raises(AssertionError, match="more than max_points=5"):
        test()


def test_a_handler_that_no_other_process_can_import_is_refused():
    test = survives_crashes(lambda msg, session: None, ORDERS, tables=tables)(each_once)

    with pytest.raises(ValueError, match="cannot be imported"):
        test()


def test_a_payload_type_that_no_other_process_can_import_is_refused():
    @dataclass
    class Local(Order):
        pass

    with pytest.raises(ValueError, match="payload_type cannot be imported by another process"):
        survives_crashes(bill_typed, TYPED, tables=tables, payload_type=Local)(each_once)()


@pytest.mark.parametrize("handler", [bill, bill_awaited])
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_the_handlers_own_kind_of_database_is_used(tmp_path, kind, handler):
    seen = set()

    def check(engine: Engine) -> None:
        seen.add(engine.dialect.name)
        assert billed(engine) == [1]

    with database(kind, tmp_path) as url:
        survives_crashes(handler, ORDERS[:1], tables=tables, database_url=url, faults=["crash"])(check)()

    assert seen == {{"postgres": "postgresql", "mariadb": "mysql"}[kind]}
