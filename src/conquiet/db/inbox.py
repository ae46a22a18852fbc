"""Inbox: a row per handled message, in the handler's own transaction, so that effects happen once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy import BigInteger, Column, Engine, MetaData, String, Table, Text, delete, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from conquiet.arguments import check_positive_int
from conquiet.db.driver_statement import DriverStatement, has_other_schema
from conquiet.db.insert_new import insert_new
from conquiet.db.lock_timeout import insert_within, insert_within_on_mariadb, lock_timeout
from conquiet.db.outage_codes import is_lock_timeout
from conquiet.db.retention import PURGE_STEP, check_keep_for, delete_oldest
from conquiet.db.session import DbSession
from conquiet.db.table_creation import (
    MYSQL_OPTIONS,
    check_table_name,
    create_table,
    digest_of,
    fitting,
    now_ms,
    visible_sql,
)
from conquiet.errors import InboxRowLockedError
from conquiet.logs import Delivered


class Identified(Delivered, Protocol):
    """A message, as far as the inbox knows it."""

    @property
    def attempt(self) -> int:
        """Deliveries so far, this one included."""

    @property
    def identity(self) -> tuple[str, str]:
        """Where it is from and its name there: the same for every delivery and every copy of it."""


class Inbox:
    """Records which messages were handled; a redelivered one is acked without its handler.

    Args:
        table: the name of its table; `create_table` makes it, and so does a drain that finds none.
        namespace: distinguishes servers whose streams have the same names but share one database.
        lock_timeout_s: how long a message waits for a worker that is still in the middle of it, or was frozen
            there.
        keep_for: drains and consumers purge older rows of the whole table, in small steps: a message that is
            redelivered after that time is handled again.

    Examples:
        >>> report = drain(queue, bill, engine, DrainLimits(idle_ms=50), inbox=Inbox(table="handled_orders"))
    """

    def __init__(
        self,
        *,
        table: str = "conquiet_inbox",
        namespace: str = "",
        lock_timeout_s: int = 10,
        keep_for: timedelta | None = None,
    ) -> None:
        check_table_name(table)
        check_keep_for(keep_for)
        check_positive_int("lock_timeout_s", lock_timeout_s)
        if not isinstance(namespace, str):
            raise TypeError(f"namespace must be a str, not {namespace!r}")
        self.namespace = namespace
        self.lock_timeout_s = lock_timeout_s
        self.keep_for = keep_for
        self._table = Table(
            table,
            MetaData(),
            Column("message_key", String(64), primary_key=True),
            Column("namespace", Text, nullable=False),
            Column("stream", Text, nullable=False),
            Column("consumer_group", Text, nullable=False),
            Column("entry_id", String(64), nullable=False),
            # One for each delivery: a failed handling deletes its own row and no other.
            Column("delivery", String(32), nullable=False),
            Column("handled_at_ms", BigInteger, nullable=False, index=True),
            **MYSQL_OPTIONS,
        )
        self._insert = DriverStatement(insert(self._table))
        self._insert_within = DriverStatement(insert_within(self._table))
        self._insert_on_mariadb = DriverStatement(insert_within_on_mariadb(self._table, lock_timeout_s))

    def create_table(self, engine: Engine) -> None:
        """Create the table unless it exists; `run` and `drain` call it before their first message."""
        create_table(self._table, engine)

    def record(self, session: DbSession, msg: Identified) -> str | None:
        """Write the row, as the first statement of the transaction; `None` if it existed before.

        While another worker handles the same message this waits for its end, no longer than `lock_timeout_s`;
        the first attempt on MySQL for its `innodb_lock_wait_timeout`. After `None` the transaction must be
        left by an exception. Returns the name of this delivery, for `take_back`.

        Raises:
            InboxRowLockedError: the other transaction has not ended in time.
        """
        delivery = os.urandom(16).hex()
        connection = session.connection
        is_mariadb = getattr(connection.dialect, "is_mariadb", False)
        row: dict[str, Any] = {
            "message_key": self._key(msg),
            "namespace": self.namespace,
            "stream": msg.stream,
            "consumer_group": msg.group,
            "entry_id": fitting(msg.id),
            "delivery": delivery,
            "handled_at_ms": now_ms(),
        }
        try:
            if connection.dialect.name == "postgresql":
                # Without a lock timeout it would wait for ever for a worker that is frozen.
                row["lock_timeout"] = f"{self.lock_timeout_s}s"
                self._insert_within.execute(connection, row)
            elif is_mariadb and not has_other_schema(connection):
                self._insert_on_mariadb.execute(connection, row)
            elif is_mariadb or msg.attempt > 1:
                with lock_timeout(session, self.lock_timeout_s):
                    self._insert.execute(connection, row)
            else:
                # MySQL and SQLite have a lock timeout of their own; a shorter one costs round trips.
                self._insert.execute(connection, row)
        except IntegrityError:
            return None
        except DBAPIError as error:
            if is_lock_timeout(error):
                raise InboxRowLockedError(
                    f"the inbox row of entry {msg.id} of stream {msg.stream!r}, group {msg.group!r}, is "
                    "locked by another transaction: its worker is still handling the message, or is frozen. "
                    "It is free when that transaction ends; `conquiet doctor --database` finds such sessions"
                ) from error
            raise
        return delivery

    def record_batch(self, session: DbSession, messages: Sequence[Identified]) -> tuple[str, set[str]]:
        """As `record`, in one insert: the name of this delivery, and the ids of messages handled before.

        The second of two copies of one message counts as handled, by the first one's handling.
        """
        delivery, handled_at_ms = os.urandom(16).hex(), now_ms()
        messages_by_key: dict[str, Identified] = {}
        for msg in messages:
            messages_by_key.setdefault(self._key(msg), msg)
        # In the same order for all: of two batches with the same messages one waits for the other's end.
        rows = [
            {
                "message_key": key,
                "namespace": self.namespace,
                "stream": msg.stream,
                "consumer_group": msg.group,
                "entry_id": fitting(msg.id),
                "delivery": delivery,
                "handled_at_ms": handled_at_ms,
            }
            for key, msg in sorted(messages_by_key.items())
        ]
        try:
            inserted = insert_new(session, self._table, rows, self.lock_timeout_s)
        except DBAPIError as error:
            if is_lock_timeout(error):
                text = f"the inbox row of an entry of stream {messages[0].stream!r} is locked"
                raise InboxRowLockedError(text) from error
            raise
        new = {messages_by_key[key].id for key in inserted}
        return delivery, {msg.id for msg in messages} - new

    def take_back(self, session: DbSession, delivery: str, *messages: Identified) -> None:
        """Delete the rows of a handling that failed, in case something committed it in spite of the guard."""
        columns = self._table.c
        is_of_message = columns.message_key.in_([self._key(msg) for msg in messages])
        session.execute(delete(self._table).where(is_of_message, columns.delivery == delivery))

    def has(self, session: DbSession, msg: Identified) -> bool:
        """Whether the message was handled and committed."""
        key = self._table.c.message_key
        statement = select(key).where(key == self._key(msg))
        return session.scalar(statement) is not None

    def recorded_id(self, session: DbSession, msg: Identified) -> str | None:
        """The entry id that the message's row has; `None` without a row."""
        columns = self._table.c
        statement = select(columns.entry_id).where(columns.message_key == self._key(msg))
        entry_id: str | None = session.scalar(statement)
        return entry_id

    def purge(self, engine: Engine, older_than: timedelta) -> int:
        """Delete rows of messages handled longer ago than `older_than`; returns how many.

        Keep more than the longest time after which a message may still be redelivered: without its row it
        is handled again.
        """
        if not isinstance(older_than, timedelta):
            raise TypeError(f"older_than must be a timedelta, not {older_than!r}")
        if older_than < timedelta(0):
            raise ValueError(f"older_than must not be negative, got {older_than!r}")
        purged = 0
        with visible_sql("the inbox"):
            while True:
                with DbSession(engine) as session:
                    step = self.purge_step(session, older_than)
                purged += step
                if step < PURGE_STEP:
                    return purged

    def purge_step(self, session: DbSession, older_than: timedelta) -> int:
        """Delete up to `PURGE_STEP` rows that are older, the oldest first; returns how many were found."""
        columns = self._table.c
        return delete_oldest(session, columns.message_key, columns.handled_at_ms, older_than, PURGE_STEP)

    def _key(self, msg: Identified) -> str:
        place, name = msg.identity
        return digest_of(self.namespace, place, msg.group, name)
