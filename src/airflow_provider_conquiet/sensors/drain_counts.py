"""DrainCounts: how many messages a sensor has handled, in the database that their effects are in."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import BigInteger, Column, Engine, MetaData, String, Table, Text, delete, func, insert, select

from conquiet import DbSession, QueueMessage
from conquiet.db.table_creation import create_table, digest_of, now_ms

_counts = Table(
    "conquiet_drain_counts",
    MetaData(),
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
        self._sensor_key = digest_of(sensor)

    def create_table(self, engine: Engine) -> None:
        """Create the table unless it is there; of two sensors that try at once, both succeed."""
        create_table(_counts, engine)

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
            "counted_at_ms": now_ms(),
        }
        session.execute(insert(_counts), row)

    def purge(self, engine: Engine, older_than: timedelta) -> None:
        """Forget counts, of all sensors, that no retry will ask for any more."""
        cutoff_ms = now_ms() - int(older_than.total_seconds() * 1000)
        with DbSession(engine) as session:
            session.execute(delete(_counts).where(_counts.c.counted_at_ms < cutoff_ms))


def _message_key(msg: QueueMessage) -> str:
    # As the inbox does: after a failover a new message may have the entry id of one that was lost.
    return digest_of(msg.group, *msg.identity)
