"""The tables of Inbox and Outbox: made when needed, by many at once, under a name that is plain in SQL."""

from __future__ import annotations

from functools import partial
from threading import Barrier

import pytest
from sqlalchemy import Engine, func, inspect, select, table

from conquiet import DbSession, Inbox, Outbox, QueueMessage
from tests.eventually import HANG_S
from tests.with_databases.conftest import OpenDb
from tests.with_databases.threads import Running

REFUSED = ["", "2box", "a box", "a-box", "public.box", 'a"box', "box;", "bóx", "box\n", "b" * 64, None]


def use(engine: Engine, box: Inbox | Outbox) -> None:
    with DbSession(engine) as session:
        if isinstance(box, Inbox):
            box.record(session, QueueMessage("orders", "billing", "1-1", {}))
        else:
            box.enqueue(session, "orders", {})


def rows(engine: Engine, name: str) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table(name))) or 0


@pytest.mark.parametrize("kind", [Inbox, Outbox])
@pytest.mark.parametrize("name", ["Box_2", "order", "b" * 63])
def test_table_may_have_any_plain_name(db: Engine, kind: type[Inbox | Outbox], name: str):
    box = kind(table=name)

    box.create_table(db)
    use(db, box)

    assert rows(db, name) == 1


@pytest.mark.parametrize("kind", [Inbox, Outbox])
@pytest.mark.parametrize("name", REFUSED)
def test_table_name_that_is_not_plain_is_refused(kind: type[Inbox | Outbox], name: str):
    with pytest.raises(ValueError, match="table must be a plain SQL name of at most 63 characters"):
        kind(table=name)


@pytest.mark.parametrize("kind", [Inbox, Outbox])
def test_table_that_is_there_keeps_its_rows(db: Engine, kind: type[Inbox | Outbox]):
    box = kind(table="box")
    box.create_table(db)
    use(db, box)

    box.create_table(db)

    assert rows(db, "box") == 1


@pytest.mark.parametrize("kind", [Inbox, Outbox])
def test_table_may_be_created_by_many_at_once(open_db: OpenDb, kind: type[Inbox | Outbox]):
    engines = [open_db() for _ in range(8)]
    start = Barrier(len(engines))

    def create(engine: Engine) -> None:
        with engine.connect():
            start.wait(HANG_S)
        kind(table="box").create_table(engine)

    threads = [Running(partial(create, engine)) for engine in engines]
    errors = [thread.error() for thread in threads]

    assert errors == [None] * len(engines)
    assert inspect(engines[0]).has_table("box")
