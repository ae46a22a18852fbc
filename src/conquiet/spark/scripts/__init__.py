"""The Lua scripts of the data source, each behind one typed function or named as a script to send."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from conquiet.queue.connection import Client, visible_errors
from conquiet.queue.lua import Argument, LuaScript
from conquiet.spark.entry_ids import EntryId, IdRange

_HERE = files(__name__)


def _script(name: str) -> LuaScript:
    return LuaScript(_HERE.joinpath(f"{name}.lua").read_bytes())


_SAMPLE, _WALK, _FOLLOW = _script("sample"), _script("walk"), _script("follow")
_NOTE_PARTITIONS = _script("note_partitions")

#: Sent by the writer itself, many rows at a time.
ADD_ROWS = _script("add_rows")
ADD_NAMED_ROWS = _script("add_named_rows")


def sample(
    client: Client, stream: str, points: Sequence[EntryId], last: EntryId, count: int
) -> list[tuple[EntryId, EntryId, int] | None]:
    """Up to `count` entries from each point on: the first, the last, how many; `None` if there is none."""
    arguments: list[Argument] = [count, str(last), *map(str, points)]
    with visible_errors("sample", stream=stream, group=None):
        found = _SAMPLE.run(client, [stream], arguments)
    return [
        (EntryId.parse(first), EntryId.parse(end), number) if number else None for first, end, number in found
    ]


def walk(client: Client, stream: str, within: IdRange, steps: int, size: int) -> list[tuple[EntryId, int]]:
    """Go through a range in up to `steps` steps of `size` entries: where each step ended, and its number."""
    arguments: list[Argument] = [str(within.first), str(within.last), steps, size]
    with visible_errors("walk", stream=stream, group=None):
        found = _WALK.run(client, [stream], arguments)
    return [(EntryId.parse(last), number) for last, number in found]


def follow(client: Client, stream: str, group: str, last: EntryId, entries_read: int | None) -> None:
    """Move a group forward to `last`, never back; it is created if it is not there."""
    arguments = [group.encode(), str(last), "" if entries_read is None else entries_read]
    with visible_errors("XGROUP SETID", stream=stream, group=group):
        _FOLLOW.run(client, [stream], arguments)


def note_partitions(
    client: Client, key: str, partitions: Sequence[int], *, count: int, batch: int, window_ms: int
) -> tuple[int, list[int]]:
    """Add to a task's record; returns of how many partitions it speaks, and which were noted so far."""
    arguments: list[Argument] = [window_ms, f"{batch:020}", count, *partitions]
    with visible_errors("note_partitions", stream=key, group=None):
        record = _NOTE_PARTITIONS.run(client, [key], arguments)
    agreed, _, noted = record.decode().partition(":")
    return int(agreed), [int(partition) for partition in noted.split(",") if partition]
