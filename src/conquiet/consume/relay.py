"""OutboxRelay: moves committed outbox rows to their streams."""

from __future__ import annotations

from sqlalchemy import Engine

from conquiet.db import DbSession, Outbox
from conquiet.queue.config import check_positive_int
from conquiet.queue.connection import Client, add_entries, queue_error, visible_errors


class OutboxRelay:
    """Publishes what handlers committed, oldest first, at least once; two relays at a time take turns."""

    def __init__(self, engine: Engine, client: Client, outbox: Outbox | None = None) -> None:
        self._engine = engine
        self._client = client
        self._outbox = Outbox() if outbox is None else outbox

    def relay(self, limit: int = 100) -> int:
        """Publish up to `limit` rows and delete them; returns how many.

        A crash after the publishing and before the commit publishes again. Rows that Redis refuses stay,
        the others go; then the refusal is raised.
        """
        check_positive_int("limit", limit)
        with DbSession(self._engine) as session:
            rows = self._outbox.oldest(session, limit)
            if not rows:
                return 0
            with visible_errors("relay", stream=rows[0].stream, group=None):
                replies = add_entries(self._client, [(row.stream.encode(), row.data) for row in rows])
            answered = list(zip(rows, replies, strict=True))
            refused = [(row, reply) for row, reply in answered if isinstance(reply, Exception)]
            self._outbox.remove(
                session, [row.id for row, reply in answered if not isinstance(reply, Exception)]
            )
        if refused:
            row, error = refused[0]
            operation = f"relay of {len(refused)} outbox rows from row {row.id}"
            raise queue_error(operation, error, stream=row.stream, group=None) from error
        return len(rows)
