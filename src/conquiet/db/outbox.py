"""Outbox: messages written in the handler's transaction, published after its commit."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    false,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.exc import IntegrityError

from conquiet.arguments import check_name
from conquiet.db.session import DbSession
from conquiet.db.table_creation import (
    MYSQL_OPTIONS,
    check_table_name,
    create_table,
    digest_of,
    now_ms,
    visible_sql,
)
from conquiet.payload import PayloadCodec, Sendable, as_json_object, check_codec, encode_payload
from conquiet.tracing import active_traces

#: Of the rows that are read at once; each is in memory several times.
_MAX_LENGTH = 8 << 20


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One message that waits to be published, already encoded."""

    id: int
    stream: str
    data: bytes
    created_at_ms: int

    @property
    def name(self) -> str:
        """By which a relay knows that it was published; a database that was reset may give an id again."""
        return f"{self.id}:{self.created_at_ms}:{crc32(self.data):x}"


class Outbox:
    """A table of messages to publish; `OutboxRelay` moves what was committed to its streams.

    Examples:
        >>> outbox = Outbox()
        >>> outbox.create_table(engine)
        >>> with DbSession(engine) as session:
        ...     outbox.enqueue(session, "mails", {"to": "ann"})  # published if, and only if, this commits
    """

    def __init__(self, *, table: str = "conquiet_outbox", codec: PayloadCodec | None = None) -> None:
        check_table_name(table)
        check_codec(codec)
        self._codec = codec
        self.table = table
        self._table = Table(
            table,
            MetaData(),
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("stream", Text, nullable=False),
            Column("data", Text().with_variant(LONGTEXT(), "mysql", "mariadb"), nullable=False),
            Column("created_at_ms", BigInteger, nullable=False),
            sqlite_autoincrement=True,
            **MYSQL_OPTIONS,
        )
        self._identity = Table(
            f"{table[:54]}_identity",
            MetaData(),
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("identity", String(32), nullable=False),
            **MYSQL_OPTIONS,
        )
        self._insert = insert(self._table)

    def name_in(self, engine: Engine) -> str:
        """By which a relay knows this outbox from those of other databases, whatever URL leads to it.

        The database keeps it, and two URLs of one database find the same; two containers may have
        databases of their own behind one URL.
        """
        create_table(self._identity, engine)
        while True:
            with DbSession(engine) as session:
                identity = session.scalar(select(self._identity.c.identity))
            if identity is not None:
                return digest_of(identity, self.table)[:16]
            # Another process may be first.
            with suppress(IntegrityError), DbSession(engine) as session:
                session.execute(insert(self._identity), {"id": 1, "identity": os.urandom(16).hex()})

    def create_table(self, engine: Engine) -> None:
        """Create the tables unless they exist; do it once, before the first handler that uses them."""
        create_table(self._table, engine)
        with visible_sql("the outbox"):
            self.name_in(engine)

    def enqueue(self, session: DbSession, stream: str, payload: Sendable) -> None:
        """Write a message that is published if, and only if, this transaction commits."""
        check_name("stream", stream)
        written = as_json_object(payload, self._codec)
        traces = active_traces()
        if traces is not None:
            # The relay is another process at another time: the context is that of the handler.
            written = traces.with_context(written, traces.current_headers())
        row = {
            "stream": stream,
            "data": encode_payload(written).decode(),
            "created_at_ms": now_ms(),
        }
        session.execute(self._insert, row)

    def lock_oldest(
        self, session: DbSession, limit: int, *, except_of: Collection[str] = ()
    ) -> list[OutboxRow]:
        """The oldest committed rows, locked until this transaction ends; a second relay waits.

        Rows of the streams `except_of` are left out; of large ones fewer come than `limit`.
        """
        if session.connection.dialect.name == "sqlite":
            # SQLite has no row locks; a write that changes nothing takes its one write lock.
            session.execute(update(self._table).where(false()).values(stream=""))
        columns = self._table.c
        statement = (
            select(columns.id, func.length(columns.data).label("length")).order_by(columns.id).limit(limit)
        )
        if except_of:
            statement = statement.where(columns.stream.not_in(except_of))
        ids: list[int] = []
        size = 0
        for row in session.execute(statement.with_for_update()):
            if size < _MAX_LENGTH:
                ids.append(row.id)
            size += row.length
        if not ids:
            return []
        found = select(columns.id, columns.stream, columns.data, columns.created_at_ms)
        # Locked once more, else MySQL would show what was there when the transaction began.
        rows = session.execute(found.where(columns.id.in_(ids)).order_by(columns.id).with_for_update())
        return [OutboxRow(row.id, row.stream, row.data.encode(), row.created_at_ms) for row in rows]

    def remove(self, session: DbSession, ids: Sequence[int]) -> None:
        if ids:
            session.execute(delete(self._table).where(self._table.c.id.in_(ids)))

    def waiting(self, engine: Engine) -> int:
        """How many committed rows wait to be published."""
        with visible_sql("the outbox"), DbSession(engine) as session:
            return int(session.scalar(select(func.count()).select_from(self._table)))
