"""OutboxRelay: moves committed outbox rows to their streams."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from conquiet.arguments import check_positive_int
from conquiet.db import DbSession, Outbox, OutboxRow
from conquiet.db.tables import visible_sql
from conquiet.queue.connection import Client, queue_error, visible_errors
from conquiet.queue.ends import EndWatch
from conquiet.queue.replicas import ReplicaWait
from conquiet.queue.round_trip import add_entries


class OutboxRelay:
    """Publishes what handlers committed, oldest first, at least once; two relays at a time take turns."""

    def __init__(
        self,
        engine: Engine,
        client: Client,
        outbox: Outbox | None = None,
        *,
        min_replicas: int = 0,
        replica_timeout_ms: int = 1_000,
    ) -> None:
        """Publish to the streams of this client's server.

        Args:
            min_replicas: a row is kept until so many replicas have its message: a failover loses none.
            replica_timeout_ms: for so long `relay` waits for them.
        """
        self._replicas = ReplicaWait(min_replicas, replica_timeout_ms)
        self._engine = engine
        self._client = client
        self._ends = EndWatch(client)
        self._outbox = Outbox() if outbox is None else outbox

    def relay(self, limit: int = 100) -> int:
        """Publish up to `limit` rows and delete them; returns how many.

        A crash after the publishing and before the commit publishes again. Rows that Redis refuses stay,
        the others go; then the refusal is raised.

        Raises:
            NotReplicatedError: too few replicas are connected, and nothing was published; or too few have
                confirmed in time, and what was published will be published again.
        """
        check_positive_int("limit", limit)
        moved = 0
        refused: dict[str, tuple[OutboxRow, Exception]] = {}
        with visible_sql("the outbox"), DbSession(self._engine) as session:
            # A refused stream is left out from then on: its rows must neither block the others nor overtake.
            while moved < limit and (
                rows := self._outbox.lock_oldest(session, limit - moved, except_of=refused)
            ):
                sent, failed = self._publish(rows)
                self._outbox.remove(session, [row.id for row in sent])
                moved += len(sent)
                for row, error in failed:
                    refused.setdefault(row.stream, (row, error))
        if refused:
            row, error = next(iter(refused.values()))
            operation = f"relay ({moved} rows moved, refused: {', '.join(map(repr, refused))})"
            raise queue_error(operation, error, stream=row.stream, group=None) from error
        return moved

    def _publish(
        self, rows: Sequence[OutboxRow]
    ) -> tuple[list[OutboxRow], list[tuple[OutboxRow, Exception]]]:
        streams = {row.stream for row in rows}
        # First: while a replica is down, each call would publish all of them once more.
        primaries = self._replicas.before(self._client, streams, connected=True)
        self._ends.check_before_send(*streams)
        with visible_errors("relay", stream=rows[0].stream, group=None):
            replies = add_entries(self._client, [(row.stream.encode(), row.data) for row in rows])
        for row, reply in zip(rows, replies, strict=True):
            if isinstance(reply, str):
                self._ends.sent(row.stream, [reply], row.data)
        added = [reply for reply in replies if isinstance(reply, str)]
        self._replicas.after(self._client, streams, added, primaries)
        answered = list(zip(rows, replies, strict=True))
        failed = [(row, reply) for row, reply in answered if isinstance(reply, Exception)]
        return [row for row, reply in answered if not isinstance(reply, Exception)], failed
