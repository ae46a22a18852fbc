"""The Lua scripts of the data source, each called through one typed function of this module."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conquiet.errors import QueueError
from conquiet.queue.connection import Client, queue_error, visible_errors
from conquiet.queue.lua import Argument, LuaScript
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.wire.connection import ServerConnection

Hashes = NDArray[np.uint64]

#: How many partitions, and those that were added to, as record_partitions.lua writes them.
_RECORD = re.compile(rb"(\d+):,((?:\d+,)*)")

_SAMPLE, _WALK, _MOVE_GROUP, _RECORD_PARTITIONS, _ADD_ROWS_BY_ID, _ADD_ROWS_OF_TASK = (
    LuaScript(files(__name__).joinpath(f"{name}.lua").read_bytes())
    for name in ("sample", "walk", "move_group", "record_partitions", "add_rows_by_id", "add_rows_of_task")
)


def sample(
    client: Client, stream: str, starts: Sequence[EntryId], last: EntryId, count: int
) -> list[tuple[EntryId, EntryId, int] | None]:
    """Up to `count` entries from each start on: the first, the last, how many; `None` if there is none."""
    arguments: list[Argument] = [count, str(last), *map(str, starts)]
    with visible_errors("sample", stream=stream, group=None):
        samples = _SAMPLE.run(client, [stream], arguments)
    return [
        (EntryId.parse(first), EntryId.parse(end), number) if number else None
        for first, end, number in samples
    ]


def walk(client: Client, stream: str, within: IdRange, steps: int, size: int) -> list[tuple[EntryId, int]]:
    """Go through a range in up to `steps` steps of `size` entries: where each step ended, and its number."""
    arguments: list[Argument] = [str(within.first), str(within.last), steps, size]
    with visible_errors("walk", stream=stream, group=None):
        ends = _WALK.run(client, [stream], arguments)
    return [(EntryId.parse(last), number) for last, number in ends]


def move_group(client: Client, stream: str, group: str, last: EntryId, entries_read: int | None) -> None:
    """Move a group forward to `last`, never back; it is created if it is not there."""
    arguments = [group.encode(), str(last), "" if entries_read is None else entries_read]
    with visible_errors("XGROUP SETID", stream=stream, group=group):
        _MOVE_GROUP.run(client, [stream], arguments)


def record_partitions(
    client: Client, key: str, partitions: Sequence[int], *, count: int, batch: int, window_ms: int
) -> tuple[int, list[int]]:
    """Add to a task's record; returns the number of partitions in it, and which were recorded so far."""
    arguments: list[Argument] = [window_ms, f"{batch:020}", count, *partitions]
    with visible_errors("record_partitions", stream=key, group=None):
        record = _RECORD_PARTITIONS.run(client, [key], arguments)
    match = _RECORD.fullmatch(record)
    if match is None:
        reason = f"the record of the task's other attempts is of another version of conquiet: {record!r:.100}"
        raise QueueError("record_partitions", stream=key, group=None, reason=reason)
    return int(match[1]), [int(partition) for partition in match[2].split(b",") if partition]


def add_rows_by_id(
    connection: ServerConnection,
    keys: Sequence[str],
    ids: Sequence[bytes],
    rows: Sequence[bytes],
    window_ms: int,
) -> None:
    """Add each row unless its id is known; an error is raised by a later call of the connection.

    Args:
        keys: the stream, the ids that are known, until when each is.
    """
    pairs = (part for pair in zip(ids, rows, strict=True) for part in pair)
    _send(connection, _ADD_ROWS_BY_ID, keys, [window_ms, *pairs])


@dataclass(frozen=True, slots=True)
class TaskKey:
    """Where the server keeps what the attempts of one task have added to one stream."""

    stream: str
    key: str
    batch: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Rows of a task that are in a stream: how many, and the digest over their hashes in order."""

    count: int = 0
    digest: str = "0" * 16

    def and_then(self, hashes: Hashes) -> AddedRows:
        """These and more rows."""
        digest = blake2b(hashes.astype("<u8").tobytes(), key=self.digest.encode(), digest_size=8)
        return AddedRows(self.count + len(hashes), digest.hexdigest())


def add_rows_of_task(
    connection: ServerConnection,
    task: TaskKey,
    known: AddedRows,
    after: AddedRows,
    packed: pa.StringArray,
    hashes: Hashes,
    on_reply: Callable[[tuple[AddedRows, Hashes] | None], None],
) -> None:
    """Add rows behind those that are known; without rows, ask what other attempts have added.

    Args:
        after: what is known, and these rows.
        packed: the rows, as `packed_texts` makes them.
        on_reply: called with `None` once the rows are added. If other attempts have added rows that are not
            known, nothing is added; it is called with all that were, and with the hashes of the unknown ones.
    """

    def receive(reply: Any) -> None:
        if reply == 0:
            on_reply(None)
            return
        digest, unknown = reply
        others = np.frombuffer(unknown, dtype="<u8")
        on_reply((AddedRows(known.count + len(others), digest.decode()), others))

    fixed: list[Argument] = [task.window_ms, f"{task.batch:020}", known.count, known.digest, after.digest]
    arguments: list[Argument] = [*fixed, hashes.astype("<u8").tobytes()]
    _send(connection, _ADD_ROWS_OF_TASK, [task.stream, task.key], arguments, receive, packed)


def _send(
    connection: ServerConnection,
    script: LuaScript,
    keys: Sequence[str],
    arguments: Sequence[Argument],
    on_reply: Callable[[Any], None] | None = None,
    packed: pa.StringArray | None = None,
) -> None:
    def receive(reply: Any) -> None:
        if isinstance(reply, Exception):
            raise queue_error("EVAL", reply, stream=keys[0], group=None) from reply
        if on_reply is not None:
            on_reply(reply)

    # Its text weighs nothing beside some hundred rows, and a server that failed over knows no digests.
    connection.send(["EVAL", script.text, len(keys), *keys, *arguments], receive, packed)
