"""Reads one range of one stream in batches of a few megabytes, asking for the next while one is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

from redis.exceptions import ResponseError

from conquiet.errors import QueueError
from conquiet.queue.batch_size import FEW_MESSAGES
from conquiet.queue.connection import Client, queue_error
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.errors import DataLossError
from conquiet.spark.outages import Patience, find_servers
from conquiet.spark.wire.connection import ServerConnection
from conquiet.spark.wire.replies import Entries, entries_of

#: Spark takes few large batches much faster than many small ones; the server needs some milliseconds for one.
_MOST_ENTRIES, _REPLY_BYTES = 10_000, 3 << 20
#: Those that follow may be larger: a reply has at most so many times the entries of the one before it.
_GROWTH = 10


def read_range(
    client: Client, stream: str, within: IdRange, *, fails_on_loss: bool, patience: Patience | None = None
) -> Iterator[Entries]:
    """The entries from `within.first`, which is there, to `within.last`.

    Args:
        patience: with an outage; it goes on behind the last entry that it has read.

    Raises:
        DataLossError: some were removed before they were read, and `fails_on_loss`.
    """
    position = _Position(within.first)
    while True:
        try:
            with closing(ServerConnection(client, stream)) as connection:
                for entries in _entries_from(position, connection, stream, within, fails_on_loss):
                    if patience is not None:
                        patience.end()
                    if len(entries):
                        yield entries
        except QueueError as error:
            if patience is None:
                raise
            patience.wait(error)
            with suppress(QueueError):
                # If no server answers yet, the next connection will find that out.
                find_servers(client, stream)
        else:
            return


@dataclass(slots=True)
class _Position:
    #: The entry that is read next, or was read last: it is asked for once more.
    expected: EntryId
    is_first: bool = True


def _entries_from(
    position: _Position, connection: ServerConnection, stream: str, within: IdRange, fails_on_loss: bool
) -> Iterator[Entries]:
    count = FEW_MESSAGES
    connection.send_raw(_command(connection, stream, position.expected, within.last, count))
    while True:
        reply = connection.receive_raw()
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
            fitting = int(_REPLY_BYTES * len(entries) / len(reply))
            count = min(_GROWTH * count, max(2, min(_MOST_ENTRIES, fitting)))
            connection.send_raw(_command(connection, stream, last, within.last, count))
        new = entries if position.is_first or first != expected else entries.without_first()
        position.expected, position.is_first = last, False
        yield new
        if is_end:
            return


def _command(connection: ServerConnection, stream: str, first: EntryId, last: EntryId, count: int) -> bytes:
    return connection.pack("XRANGE", stream, str(first), str(last), "COUNT", count)
