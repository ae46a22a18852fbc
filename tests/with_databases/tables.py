"""What the handlers of these tests write, and how it is looked at from outside."""

from __future__ import annotations

from sqlalchemy import Column, Engine, Integer, MetaData, Table, insert, select
from sqlalchemy.orm import registry

from conquiet import DbSession, QueueMessage
from tests.conftest import effects

__all__ = ["accounts", "effects"]

#: With a primary key, for rows that clash.
accounts = Table(
    "accounts",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("balance", Integer, nullable=False),
)


class Account:
    """A row of `accounts`."""

    def __init__(self, id: int, balance: int) -> None:  # noqa: A002 -- the column's name
        self.id = id
        self.balance = balance


registry().map_imperatively(Account, accounts)


def write(session: DbSession, note: str, *, entry_id: str = "") -> None:
    """One effect."""
    session.execute(insert(effects), {"entry_id": entry_id, "note": note})


def write_id(msg: QueueMessage, session: DbSession) -> None:
    """A handler whose effect is the id of its message."""
    write(session, msg.id, entry_id=msg.id)


def notes(engine: Engine) -> list[str]:
    """The notes of all committed effects."""
    with engine.connect() as connection:
        return sorted(connection.scalars(select(effects.c.note)))


def add_accounts(engine: Engine, *ids: int) -> None:
    """Committed accounts without money."""
    with engine.begin() as connection:
        connection.execute(insert(accounts), [{"id": number, "balance": 0} for number in ids])


def balances(engine: Engine) -> dict[int, int]:
    """All committed accounts."""
    with engine.connect() as connection:
        return {row.id: row.balance for row in connection.execute(select(accounts))}
