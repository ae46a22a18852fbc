"""A stream before it is read: how long it is, where it begins and ends, how large an entry is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redis.exceptions import ResponseError

from conquiet.errors import QueueError
from conquiet.queue.backlog import as_mapping
from conquiet.queue.connection import Client, run_command
from conquiet.spark.entry_ids import ZERO, EntryId, IdRange

_GUESSED_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream at one moment; one that is not there has no entries."""

    length: int = 0
    first: EntryId | None = None
    last: EntryId | None = None
    last_generated: EntryId = ZERO
    #: Entries ever added; `None` before Redis 7.
    entries_added: int | None = 0
    #: The largest id that was ever deleted with XDEL, not trimmed.
    max_deleted: EntryId = ZERO

    @property
    def removed(self) -> int | None:
        """Entries that were trimmed or deleted so far."""
        return None if self.entries_added is None else self.entries_added - self.length

    @property
    def whole(self) -> IdRange:
        """From the first entry to the last one; empty if there is none."""
        return IdRange(self.first or EntryId(1, 0), self.last or ZERO)

    def added_up_to(self, entry_id: EntryId) -> int | None:
        """Entries ever added up to an id, if that is known without counting: outside of what is there."""
        if self.last_generated < entry_id:
            return None
        if self.last is None or self.last <= entry_id:
            return self.entries_added
        if self.first is None or self.first > entry_id:
            return self.removed
        return None

    def bounded_by(self, until: StreamInfo) -> StreamInfo:
        """The stream as if it ended where it did at an earlier moment."""
        last = until.last or ZERO
        if self.last is None or self.last <= last:
            return self
        return replace(self, last=last, entries_added=until.entries_added)


def read_info(client: Client, stream: str) -> StreamInfo:
    try:
        reply = run_command(client, "XINFO STREAM", stream.encode(), stream=stream, group=None)
    except QueueError as error:
        if isinstance(error.__cause__, ResponseError) and "no such key" in str(error.__cause__):
            return StreamInfo()
        raise
    info = as_mapping(reply)
    first, last = info["first-entry"], info["last-entry"]
    return StreamInfo(
        length=info["length"],
        first=EntryId.parse(first[0]) if first else None,
        last=EntryId.parse(last[0]) if last else None,
        last_generated=EntryId.parse(info["last-generated-id"]),
        entries_added=info.get("entries-added"),
        max_deleted=EntryId.parse(info.get("max-deleted-entry-id", str(ZERO))),
    )


def average_bytes(client: Client, stream: str, length: int, *, samples: int = 5) -> int:
    """What an entry takes in memory, roughly.

    Args:
        samples: how many nodes of the stream the server looks at, from the first one on.
    """
    command = ("MEMORY USAGE", stream.encode(), "SAMPLES", samples)
    try:
        used = run_command(client, *command, stream=stream, group=None)
    except QueueError as error:
        # A user may be forbidden to ask for it.
        if isinstance(error.__cause__, ResponseError):
            return _GUESSED_BYTES
        raise
    return max(1, (used or 0) // max(1, length))
