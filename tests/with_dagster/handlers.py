"""Handlers by name, as a worker process would import them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from conquiet import DbSession, QueueMessage, batch_handler
from tests.conftest import effects


def note_effect(msg: QueueMessage, session: DbSession) -> None:
    """One row for each message."""
    session.execute(effects.insert(), {"entry_id": msg.id, "note": str(msg.payload.get("n"))})


def note_effect_with_prices(msg: QueueMessage, session: DbSession, prices: Any) -> None:
    """As above, with a resource."""
    session.execute(effects.insert(), {"entry_id": msg.id, "note": str(prices.factor)})


@dataclass
class Numbered:
    """The payload of a message."""

    n: int


def note_numbered(msg: QueueMessage[Numbered], session: DbSession) -> None:
    """As above, of a payload that is typed."""
    session.execute(effects.insert(), {"entry_id": msg.id, "note": str(msg.payload.n)})


@batch_handler
def note_effects(messages: list[QueueMessage], session: DbSession) -> None:
    """One row for each message, with how many came together."""
    rows = [{"entry_id": msg.id, "note": str(len(messages))} for msg in messages]
    session.execute(effects.insert(), rows)


def refuse_odd(msg: QueueMessage, session: DbSession) -> None:
    """Fails for each message with an odd number."""
    note_effect(msg, session)
    if msg.payload["n"] % 2:
        raise ValueError(f"odd: {msg.payload['n']}")


def refuse_all(msg: QueueMessage, session: DbSession) -> None:
    """Always fails."""
    raise ConnectionError("the bank does not answer")


@batch_handler
def refuse_all_of_a_batch(messages: list[QueueMessage], session: DbSession) -> None:
    """Always fails, for all of them and for each."""
    raise ConnectionError("the bank does not answer")


def insert_into_a_table_that_is_locked(msg: QueueMessage, session: DbSession) -> None:
    """An outage in the middle of a statement that has the payload."""
    session.execute(text("PRAGMA query_only = ON"))
    session.execute(effects.insert(), {"entry_id": msg.id, "note": msg.payload["card"]})


def die_once(msg: QueueMessage, session: DbSession) -> None:
    """Kills its process in the middle of message 3, once: after the effect, before the commit."""
    note_effect(msg, session)
    marker = Path(os.environ["CONQUIET_TEST_MARKER"])
    if msg.payload["n"] == 3 and not marker.exists():
        marker.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)


def interrupt_itself(msg: QueueMessage, session: DbSession) -> None:
    """Is told to stop in the middle of message 3, and goes on to its end."""
    note_effect(msg, session)
    if msg.payload["n"] == 3:
        os.kill(os.getpid(), signal.SIGTERM)


def interrupt_itself_and_fail(msg: QueueMessage, session: DbSession) -> None:
    """Always fails, and is told to stop in the middle of message 3."""
    interrupt_itself(msg, session)
    raise ConnectionError("the bank does not answer")


def interrupt_itself_twice(msg: QueueMessage, session: DbSession) -> None:
    """Is told to stop in the middle of message 3, and told again."""
    interrupt_itself(msg, session)
    if msg.payload["n"] == 3:
        os.kill(os.getpid(), signal.SIGTERM)
