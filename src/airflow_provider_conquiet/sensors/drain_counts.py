"""DrainCounts: how many messages a sensor has handled, in the database that their effects are in."""

from __future__ import annotations

import hashlib
import time
from datetime import timedelta

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from conquiet import DbError, DbSession, QueueMessage

_counts = Table(
    "conquiet_drain_counts",
    MetaData(),
    # Digests: names may be longer than an index allows.
    Column("sensor_key", String(64), primary_key=True),
    Column("message_key", String(64), primary_key=True),
    Column("sensor", Text, nullable=False),
    Column("counted_at_ms", BigInteger, nullable=False, index=True),
)


class DrainCounts:
    """One row for each message of one sensor, written in the transaction of the message's handler.

    So a message is counted if, and only if, its effects are there, whatever dies when.
    """

    def __init__(self, sensor: str) -> None:
        self._sensor = sensor
        self._sensor_key = _digest(sensor)

    def create_table(self, engine: Engine) -> None:
        """Create the table unless it is there; of two sensors that try at once, both succeed."""
        try:
            _counts.create(engine, checkfirst=True)
        except SQLAlchemyError as error:
            if not inspect(engine).has_table(_counts.name):
                raise DbError(f"table {_counts.name} could not be created: {error}") from error

    def total(self, engine: Engine) -> int:
        """How many messages this sensor has handled so far."""
        with DbSession(engine) as session:
            statement = select(func.count()).where(_counts.c.sensor_key == self._sensor_key)
            return int(session.scalar(statement))

    def has(self, session: DbSession, msg: QueueMessage) -> bool:
        """Whether this sensor has handled the message before."""
        columns = _counts.c
        statement = select(columns.sensor_key).where(
            columns.sensor_key == self._sensor_key, columns.message_key == _message_key(msg)
        )
        return session.scalar(statement) is not None

    def add(self, session: DbSession, msg: QueueMessage) -> None:
        """Count the message, in the transaction of its effects."""
        row = {
            "sensor_key": self._sensor_key,
            "message_key": _message_key(msg),
            "sensor": self._sensor,
            "counted_at_ms": _now_ms(),
        }
        session.execute(insert(_counts), row)

    def purge(self, engine: Engine, older_than: timedelta) -> None:
        """Forget counts, of all sensors, that no retry will ask for any more."""
        cutoff_ms = _now_ms() - int(older_than.total_seconds() * 1000)
        with DbSession(engine) as session:
            session.execute(delete(_counts).where(_counts.c.counted_at_ms < cutoff_ms))


def _message_key(msg: QueueMessage) -> str:
    return _digest(msg.stream, msg.group, msg.id)


def _digest(*parts: str) -> str:
    # Lengths first, so that ("a:b", "c") and ("a", "b:c") differ.
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
