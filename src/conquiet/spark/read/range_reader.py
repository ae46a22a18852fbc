"""Reads one range of one stream in batches of a few megabytes, asking for the next while one is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from redis.exceptions import ResponseError

from conquiet.queue.batch_size import FEW_MESSAGES
from conquiet.queue.connection import Client, queue_error
from conquiet.spark.entry_ids import IdRange
from conquiet.spark.errors import DataLossError
from conquiet.spark.wire.connection import ServerConnection
from conquiet.spark.wire.replies import Entries, entries_of

#: Spark takes few large batches much faster than many small ones; the server needs some milliseconds for one.
_MOST_ENTRIES, _REPLY_BYTES = 10_000, 3 << 20
#: Those that follow may be larger: a reply has at most so many times the entries of the one before it.
_GROWTH = 10


def read_range(client: Client, stream: str, within: IdRange, *, fails_on_loss: bool) -> Iterator[Entries]:
    """The entries from `within.first`, which is there, to `within.last`.

    Raises:
        DataLossError: some were removed before they were read, and `fails_on_loss`.
    """
    count, expected, is_first = FEW_MESSAGES, within.first, True
    with closing(ServerConnection(client, stream)) as connection:
        connection.send_raw(
            connection.pack("XRANGE", stream, str(expected), str(within.last), "COUNT", count)
        )
        while True:
            reply = connection.receive_raw()
            try:
                entries = entries_of(reply)
            except ResponseError as error:
                raise queue_error("XRANGE", error, stream=stream, group=None) from error
            first = entries.id_at(0) if len(entries) else None
            if fails_on_loss and first != expected:
                before = within.last.next() if first is None else first
                raise DataLossError(stream=stream, after=str(expected.previous()), before=str(before))
            is_end = len(entries) < count
            last = entries.id_at(len(entries) - 1) if len(entries) else expected
            if not is_end:
                # The last entry is asked for once more: if it was removed by then, others may have been too.
                fitting = int(_REPLY_BYTES * len(entries) / len(reply))
                count = min(_GROWTH * count, max(2, min(_MOST_ENTRIES, fitting)))
                connection.send_raw(
                    connection.pack("XRANGE", stream, str(last), str(within.last), "COUNT", count)
                )
            new = entries if is_first or first != expected else entries.without_first()
            if len(new):
                yield new
            if is_end:
                return
            expected, is_first = last, False
