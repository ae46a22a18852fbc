"""A look at a stream before it is read: how long it is, where it begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

from redis.exceptions import ResponseError

from conquiet.errors import QueueError
from conquiet.queue.backlog import as_mapping
from conquiet.queue.connection import AS_BYTES, Client, visible_errors
from conquiet.spark.entry_ids import NONE_YET, EntryId, IdRange

_GUESSED_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class StreamLook:
    """A stream at one moment; one that is not there has no entries."""

    length: int = 0
    first: EntryId | None = None
    last: EntryId | None = None
    last_generated: EntryId = NONE_YET
    #: Entries ever added; `None` before Redis 7.
    entries_added: int | None = 0
    #: The largest id that was ever deleted by itself, not trimmed.
    max_deleted: EntryId = NONE_YET

    @property
    def removed(self) -> int | None:
        """Entries that were trimmed or deleted so far."""
        return None if self.entries_added is None else self.entries_added - self.length

    @property
    def whole(self) -> IdRange:
        """From the first entry to the last one; empty if there is none."""
        if self.first is None or self.last is None:
            return IdRange(EntryId(1, 0), EntryId(0, 0))
        return IdRange(self.first, self.last)


def look_at(client: Client, stream: str) -> StreamLook:
    """XINFO STREAM."""
    try:
        with visible_errors("XINFO STREAM", stream=stream, group=None):
            reply = client.execute_command("XINFO STREAM", stream.encode(), **AS_BYTES)  # type: ignore[no-untyped-call]
    except QueueError as error:
        if isinstance(error.__cause__, ResponseError) and "no such key" in str(error.__cause__):
            return StreamLook()
        raise
    info = as_mapping(reply)
    return StreamLook(
        length=info["length"],
        first=_id_of(info["first-entry"]),
        last=_id_of(info["last-entry"]),
        last_generated=EntryId.parse(info["last-generated-id"]),
        entries_added=info.get("entries-added"),
        max_deleted=EntryId.parse(info.get("max-deleted-entry-id", str(NONE_YET))),
    )


def average_bytes(client: Client, stream: str, length: int) -> int:
    """What an entry takes in memory, roughly."""
    try:
        with visible_errors("MEMORY USAGE", stream=stream, group=None):
            used = client.memory_usage(stream) or 0
    except QueueError as error:
        # A user may be forbidden to ask for it: then a guess must do.
        if isinstance(error.__cause__, ResponseError):
            return _GUESSED_BYTES
        raise
    return max(1, used // max(1, length))


def _id_of(entry: object) -> EntryId | None:
    if not entry:
        return None
    return EntryId.parse(entry[0])  # type: ignore[index]  # redis-py's replies are untyped
