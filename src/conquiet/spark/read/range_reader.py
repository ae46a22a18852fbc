"""Reads one range of one stream in batches of a few megabytes, asking for the next while one is used."""

from __future__ import annotations

from collections.abc import Iterator

from redis.exceptions import ResponseError

from conquiet.queue.connection import Client, queue_error
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.errors import DataLossError
from conquiet.spark.wire.connection import Wire, command
from conquiet.spark.wire.replies import Entries, entries_of

#: Spark takes few large batches much faster than many small ones; the server needs some milliseconds for one.
_MOST_ENTRIES, _REPLY_BYTES = 10_000, 3 << 20

#: Before anything is known of the size of entries.
_FEW_ENTRIES = 200


def read_range(client: Client, stream: str, within: IdRange, *, fails_on_loss: bool) -> Iterator[Entries]:
    """The entries from `within.first`, which is there, to `within.last`.

    Raises:
        DataLossError: some were removed before they were read, and `fails_on_loss`.
    """
    expected, is_first = within.first, True
    with Wire(client, stream) as wire:
        count = _likely_count(wire, stream)
        wire.ask(_range_command(stream, expected, within.last, count))
        while True:
            reply = wire.raw_reply()
            entries = _parsed(reply, stream)
            is_end = len(entries) < count
            if fails_on_loss:
                _check_first(entries, expected, within, stream)
            last = entries.id_at(len(entries) - 1) if len(entries) else expected
            if not is_end:
                # The last entry is asked for once more: if it is gone by then, others may be too.
                count = _fitting(len(reply) / len(entries))
                wire.ask(_range_command(stream, last, within.last, count))
            is_known = not is_first and len(entries) > 0 and entries.id_at(0) == expected
            fresh = entries.without_first() if is_known else entries
            if len(fresh):
                yield fresh
            if is_end:
                return
            expected, is_first = last, False


def _likely_count(wire: Wire, stream: str) -> int:
    wire.send([command("XLEN", stream), command("MEMORY", "USAGE", stream)])
    length, used = wire.receive(), wire.receive()
    # A user may be forbidden to ask for memory.
    return _fitting(used / length) if isinstance(used, int) and length else _FEW_ENTRIES


def _fitting(bytes_of_one: float) -> int:
    return max(2, min(_MOST_ENTRIES, int(_REPLY_BYTES / bytes_of_one)))


def _range_command(stream: str, first: EntryId, last: EntryId, count: int) -> bytes:
    return command("XRANGE", stream, str(first), str(last), "COUNT", count)


def _parsed(reply: object, stream: str) -> Entries:
    try:
        return entries_of(reply)  # type: ignore[arg-type]  # numpy's own type
    except ResponseError as error:
        raise queue_error("XRANGE", error, stream=stream, group=None) from error


def _check_first(entries: Entries, expected: EntryId, within: IdRange, stream: str) -> None:
    if not len(entries):
        raise DataLossError(stream=stream, after=str(expected.previous()), before=str(within.last.next()))
    if entries.id_at(0) != expected:
        raise DataLossError(stream=stream, after=str(expected.previous()), before=str(entries.id_at(0)))
