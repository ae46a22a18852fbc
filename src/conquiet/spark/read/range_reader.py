"""Reads one range of one stream in batches of a few megabytes, asking for the next while one is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from conquiet.errors import QueueError
from conquiet.queue.batch_size import FEW_MESSAGES
from conquiet.queue.connection import Client, queue_error, run_command
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.errors import DataLossError
from conquiet.spark.outages import Patience, find_servers
from conquiet.spark.read.stream_info import average_bytes
from conquiet.spark.wire.connection import ReplyTooLargeError, ServerConnection
from conquiet.spark.wire.replies import Entries, entries_of, joined_entries

#: Spark takes few large batches much faster than many small ones.
_MOST_ENTRIES, _BATCH_BYTES = 10_000, 3 << 20
#: How large the entries of a reply are is known when the server has made it: so one has no more of them, and
#: at most so many times those of the one before it, and no more than fit by the average of so many nodes of
#: the stream.
_MOST_IN_REPLY, _GROWTH, _NODES = 500, 10, 1_000
#: Where large entries follow small ones, a reply is dropped here, and fewer entries are asked for.
_MOST_REPLY_BYTES = 32 << 20


def read_range(
    client: Client, stream: str, within: IdRange, *, fails_on_loss: bool, patience: Patience | None = None
) -> Iterator[Entries]:
    """The entries from `within.first`, which is there, to `within.last`.

    Args:
        patience: with an outage; it goes on behind the last entry that it has read.

    Raises:
        DataLossError: some were removed before they were read, and `fails_on_loss`.
    """
    position, batch, is_end = _Position(within.first), _Batch(), False
    while not is_end:
        try:
            position.most = position.most or _most_in_reply(client, stream)
            with closing(ServerConnection(client, stream)) as connection:
                for entries, size in _replies_from(position, connection, stream, within, fails_on_loss):
                    if patience is not None:
                        patience.end()
                    if batch.size + size > _BATCH_BYTES or batch.entries >= _MOST_ENTRIES:
                        yield from batch.take()
                    batch.add(entries, size)
            is_end = True
        except ReplyTooLargeError:
            position.count = max(2, position.count // _GROWTH)
        except QueueError as error:
            if patience is None:
                raise
            patience.wait(error)
            with suppress(QueueError):
                # If no server answers yet, the next connection will find that out.
                find_servers(client, stream)
    yield from batch.take()


@dataclass(slots=True)
class _Position:
    #: The entry that is read next, or was read last: it is asked for once more.
    expected: EntryId
    is_first: bool = True
    #: How many entries to ask for.
    count: int = FEW_MESSAGES
    #: The largest `count`; 0 until the server is asked.
    most: int = 0


@dataclass(slots=True)
class _Batch:
    """What small replies have brought, until it is worth being handed over."""

    parts: list[Entries] = field(default_factory=list)
    entries: int = 0
    size: int = 0

    def add(self, entries: Entries, size: int) -> None:
        if len(entries):
            self.parts.append(entries)
            self.entries += len(entries)
            self.size += size

    def take(self) -> Iterator[Entries]:
        if self.parts:
            yield joined_entries(self.parts)
        self.parts, self.entries, self.size = [], 0, 0


def _replies_from(
    position: _Position, connection: ServerConnection, stream: str, within: IdRange, fails_on_loss: bool
) -> Iterator[tuple[Entries, int]]:
    """The entries of each reply, and how many bytes it had."""
    connection.send_raw(_command(connection, stream, position.expected, within.last, position.count))
    while True:
        count = position.count
        reply = connection.receive_raw(_MOST_REPLY_BYTES if count > 2 else None)
        try:
            entries = entries_of(reply)
        except ResponseError as error:
            raise queue_error("XRANGE", error, stream=stream, group=None) from error
        expected, first = position.expected, entries.id_at(0) if len(entries) else None
        if fails_on_loss and first != expected:
            before = within.last.next() if first is None else first
            raise DataLossError(stream=stream, after=str(expected.previous()), before=str(before))
        is_end = len(entries) < count
        last = entries.id_at(len(entries) - 1) if len(entries) else expected
        if not is_end:
            # The last entry is asked for once more: if it was removed by then, others may have been too.
            fitting = int(_BATCH_BYTES * len(entries) / len(reply))
            position.count = min(_GROWTH * count, max(2, min(position.most, fitting)))
            connection.send_raw(_command(connection, stream, last, within.last, position.count))
        new = entries if position.is_first or first != expected else entries.without_first()
        position.expected, position.is_first = last, False
        yield new, len(reply)
        if is_end:
            return


def _most_in_reply(client: Client, stream: str) -> int:
    length = run_command(client, "XLEN", stream.encode(), stream=stream, group=None)
    fitting = _BATCH_BYTES // average_bytes(client, stream, length, samples=_NODES)
    return max(2, min(_MOST_IN_REPLY, fitting))


def _command(connection: ServerConnection, stream: str, first: EntryId, last: EntryId, count: int) -> bytes:
    return connection.pack("XRANGE", stream, str(first), str(last), "COUNT", count)
