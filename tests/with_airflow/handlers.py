"""Handlers that the tests name by their import strings."""

from __future__ import annotations

from sqlalchemy import insert

from conquiet import DbSession, QueueMessage
from tests.conftest import effects


def record(msg: QueueMessage, session: DbSession) -> None:
    """Write one row for each message."""
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload["number"])})


def record_even(msg: QueueMessage, session: DbSession) -> None:
    """Refuse odd numbers."""
    if msg.payload["number"] % 2:
        raise ValueError(f"odd: {msg.payload}")
    record(msg, session)
