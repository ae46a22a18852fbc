"""Handlers that the tests name by their import strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import insert

from conquiet import DbSession, QueueMessage, batch_handler
from tests.conftest import effects


def record(msg: QueueMessage, session: DbSession) -> None:
    """Write one row for each message."""
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload["number"])})


@dataclass
class Numbered:
    """The payload of a message."""

    number: int


def record_numbered(msg: QueueMessage[Numbered], session: DbSession) -> None:
    """As above, of a payload that is typed."""
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload.number)})


def record_even(msg: QueueMessage, session: DbSession) -> None:
    """Refuse odd numbers."""
    if msg.payload["number"] % 2:
        raise ValueError(f"odd: {msg.payload}")
    record(msg, session)


def record_all(messages: Sequence[QueueMessage], session: DbSession) -> None:
    """Write one row for each message, with how many came together."""
    rows = [{"entry_id": msg.id, "note": f"{msg.payload['number']} of {len(messages)}"} for msg in messages]
    session.execute(insert(effects), rows)


#: As it is found by a name.
record_batch = batch_handler(record_all)
