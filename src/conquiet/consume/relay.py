"""OutboxRelay: moves committed outbox rows to their streams."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from sqlalchemy import Engine

from conquiet.arguments import check_positive_int
from conquiet.consume.scripts import publish
from conquiet.db import DbSession, Outbox, OutboxRow
from conquiet.db.table_creation import visible_sql
from conquiet.errors import QueueError
from conquiet.queue.connection import (
    Client,
    check_client,
    key_beside,
    queue_error,
    run_command,
    visible_errors,
)
from conquiet.queue.ends import EndWatch
from conquiet.queue.replicas import ReplicaWait

_log = logging.getLogger(__name__)

#: For so long after the last call it is known which rows were published and maybe not removed.
_KNOWN_FOR_MS = 30 * 24 * 3_600_000
#: Rows that one script publishes: the server does nothing else meanwhile.
_MOST_AT_A_TIME = 500


class OutboxRelay:
    """Publishes what handlers committed, oldest first, each row once; two relays take turns.

    A failover may lose what was published and not replicated, unless there are `min_replicas`.

    Examples:
        >>> Outbox().create_table(engine)
        >>> moved = OutboxRelay(engine, client).relay(limit=100)
    """

    def __init__(
        self,
        engine: Engine,
        client: Client,
        outbox: Outbox | None = None,
        *,
        min_replicas: int = 0,
        replica_timeout_ms: int = 1_000,
        fsync: bool = False,
    ) -> None:
        """Publish to the streams of this client's server.

        Args:
            min_replicas: a row is kept until so many replicas have its message: a failover loses none.
            replica_timeout_ms: for so long `relay` waits for them.
            fsync: a row is kept until its message is on disk, too, at the primary and these replicas; see
                `StreamWriter`.
        """
        check_client(client)
        self._replicas = ReplicaWait(min_replicas, replica_timeout_ms, fsync)
        self._engine = engine
        self._client = client
        self._ends = EndWatch(client)
        self._outbox = Outbox() if outbox is None else outbox
        #: Of the outbox, once the database was asked.
        self._name: str | None = None

    def relay(self, limit: int = 100) -> int:
        """Publish up to `limit` rows and delete them; returns how many.

        A row that was published by a call that did not commit, as after a crash, is not published again: its
        entry is remembered beside the stream. Rows that Redis refuses stay, the others go; then the refusal
        is raised.

        Raises:
            NotReplicatedError: too few replicas are connected, and nothing was published; or too few have
                confirmed in time, and the rows stay until they have.
        """
        check_positive_int("limit", limit)
        moved: list[OutboxRow] = []
        refused: dict[str, tuple[OutboxRow, Exception]] = {}
        if self._name is None:
            with visible_sql("the outbox"):
                self._name = self._outbox.name_in(self._engine)
        with visible_sql("the outbox"), DbSession(self._engine) as session:
            # A refused stream is left out from then on: its rows must neither block the others nor overtake.
            while len(moved) < limit and (
                rows := self._outbox.lock_oldest(
                    session, min(limit - len(moved), _MOST_AT_A_TIME), except_of=refused
                )
            ):
                sent, failed = self._publish(rows)
                self._outbox.remove(session, [row.id for row in sent])
                moved += sent
                for row, error in failed:
                    refused.setdefault(row.stream, (row, error))
        self._forget(moved)
        if refused:
            row, error = next(iter(refused.values()))
            operation = f"relay ({len(moved)} rows moved, refused: {', '.join(map(repr, refused))})"
            raise queue_error(operation, error, stream=row.stream, group=None) from error
        return len(moved)

    def _publish(
        self, rows: Sequence[OutboxRow]
    ) -> tuple[list[OutboxRow], list[tuple[OutboxRow, Exception]]]:
        by_stream = _by_stream(rows)
        # First: while a replica is down, nothing is to wait for it.
        primaries = self._replicas.before(self._client, by_stream, connected=True)
        self._ends.check_before_send(*by_stream)
        named = [
            (stream, self._known_key(stream), [(row.name, row.data) for row in some])
            for stream, some in by_stream.items()
        ]
        with visible_errors("relay", stream=rows[0].stream, group=None):
            replies = publish(self._client, named, _KNOWN_FOR_MS)
        sent: list[OutboxRow] = []
        failed: list[tuple[OutboxRow, Exception]] = []
        ids: list[str] = []
        for (stream, some), reply in zip(by_stream.items(), replies, strict=True):
            if isinstance(reply, Exception):
                failed += [(row, reply) for row in some]
                continue
            sent += some
            ids += reply[0]
            self._ends.sent(stream, reply[1], some[-1].data if reply[0][-1:] == reply[1][-1:] else None)
        # Also for what an earlier call has published, and was not confirmed then.
        self._replicas.after(self._client, by_stream, ids, primaries)
        return sent, failed

    def _forget(self, rows: Sequence[OutboxRow]) -> None:
        try:
            for stream, some in _by_stream(rows).items():
                names = [row.name for row in some]
                run_command(self._client, "HDEL", self._known_key(stream), *names, stream=stream, group=None)
        except QueueError as error:
            # The rows are gone and their ids are not given again: it costs some memory.
            _log.warning("what was relayed is remembered for a month: %s", error)

    def _known_key(self, stream: str) -> str:
        return key_beside(stream, f"once:outbox:{self._name}")


def _by_stream(rows: Iterable[OutboxRow]) -> dict[str, list[OutboxRow]]:
    by_stream: dict[str, list[OutboxRow]] = {}
    for row in rows:
        by_stream.setdefault(row.stream, []).append(row)
    return by_stream
