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
from conquiet.queue.connection import Client, key_beside, queue_error, run_command, visible_errors
from conquiet.queue.lua import Argument, LuaScript
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.wire.connection import ServerConnection

Hashes = NDArray[np.uint64]

#: How many partitions, and those that were added to, as record_partitions.lua writes them.
_RECORD = re.compile(rb"(\d+):,((?:[0-9a-f]+,)*)")


#: Of what add_rows_of_task.lua keeps of a task: the batch and the digest.
_BEFORE_HASHES = 36

#: Rows that one call keeps: the server does nothing else meanwhile.
_ROWS_KEPT = 2_000

#: As a script it goes to the server of its key.
_NOW = LuaScript(b"return redis.call('TIME')")


def _script(name: str) -> LuaScript:
    return LuaScript(files(__name__).joinpath(f"{name}.lua").read_bytes())


_SAMPLE, _WALK, _MOVE_GROUP = _script("sample"), _script("walk"), _script("move_group")
_RECORD_PARTITIONS, _BEGIN_RUN, _KEEP_ROWS_OF_TASK, _ADD_ROWS_BY_ID, _ADD_ROWS_OF_TASK = (
    _script("record_partitions"),
    _script("begin_run"),
    _script("keep_rows_of_task"),
    _script("add_rows_by_id"),
    _script("add_rows_of_task"),
)


def sample(
    client: Client, stream: str, starts: Sequence[EntryId], last: EntryId, count: int
) -> list[tuple[EntryId, EntryId, int] | None]:
    """Up to `count` entries from each start on: the first, the last, how many; `None` if there is none."""
    samples: list[Any] = []
    with visible_errors("sample", stream=stream, group=None):
        while len(samples) < len(starts):
            # Where entries are large, a call does not come to all of them.
            rest: list[Argument] = [count, str(last), *map(str, starts[len(samples) :])]
            samples += _SAMPLE.run(client, [stream], rest)
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
    number, recorded = _record(client, key, list(map(str, partitions)), count, batch, window_ms)
    return number, [int(partition) for partition in recorded]


def record_names(client: Client, key: str, names: Sequence[str], *, batch: int, window_ms: int) -> list[str]:
    """Add to a task's record of topics; returns those that are in it."""
    # The script divides what it records by commas.
    encoded = [name.encode().hex() for name in names]
    _, recorded = _record(client, key, encoded, 0, batch, window_ms)
    return [bytes.fromhex(name.decode()).decode() for name in recorded]


def _record(
    client: Client, key: str, new: Sequence[str], count: int, batch: int, window_ms: int
) -> tuple[int, list[bytes]]:
    arguments: list[Argument] = [window_ms, f"{batch:020}", count, *new]
    with visible_errors("record_partitions", stream=key, group=None):
        record = _RECORD_PARTITIONS.run(client, [key], arguments)
    match = _RECORD.fullmatch(record)
    if match is None:
        reason = f"the record of the task's other attempts is of another version of conquiet: {record!r:.100}"
        raise QueueError("record_partitions", stream=key, group=None, reason=reason)
    return int(match[1]), [part for part in match[2].split(b",") if part]


def add_rows_by_id(
    connection: ServerConnection,
    keys: Sequence[str],
    ids: Sequence[bytes],
    rows: Sequence[bytes],
    window_ms: int,
    on_done: Callable[[], object],
) -> None:
    """Add each row unless its id is known; an error is raised by a later call of the connection.

    Args:
        keys: the stream, the ids that are known, until when each is.
    """
    pairs = (part for pair in zip(ids, rows, strict=True) for part in pair)
    _send(connection, _ADD_ROWS_BY_ID, keys, [window_ms, *pairs], lambda _: on_done())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a named write, or of a batch of a query, in one stream."""

    #: Both beside the stream: which runs there were, and the rows that earlier ones have added.
    runs_key: str
    rows_key: str
    batch: int
    number: int
    window_ms: int

    @classmethod
    def of(cls, stream: str, write_id: str, *, batch: int, number: int, window_ms: int) -> Run:
        """The run of the write that has the id."""
        runs_key, rows_key = (key_beside(stream, f"spark:{write_id}:{name}") for name in ("runs", "rows"))
        return cls(runs_key=runs_key, rows_key=rows_key, batch=batch, number=number, window_ms=window_ms)

    @property
    def arguments(self) -> list[Argument]:
        """For each of its scripts."""
        return [self.window_ms, f"{self.batch:020}", f"{self.number:020}"]


def new_run_number(client: Client, stream: str) -> int:
    """A number above those of all runs before: the server's own time."""
    with visible_errors("TIME", stream=stream, group=None):
        seconds, microseconds = _NOW.run(client, [stream], [])
    return int(seconds) * 1_000_000 + int(microseconds)


def begin_run(client: Client, stream: str, run: Run) -> list[int]:
    """Begin a run, unless another task of it has; returns tasks of earlier runs whose rows are to be kept."""
    with visible_errors("begin_run", stream=stream, group=None):
        return [int(task) for task in _BEGIN_RUN.run(client, [run.runs_key, run.rows_key], run.arguments)]


def keep_rows_of_task(client: Client, stream: str, run: Run, task: int, key: str) -> bool:
    """Keep some rows of an earlier run's task for the tasks of this one; returns whether it has more."""
    keys, arguments = [run.runs_key, run.rows_key, key], [*run.arguments, task, _ROWS_KEPT]
    with visible_errors("keep_rows_of_task", stream=stream, group=None):
        return bool(_KEEP_ROWS_OF_TASK.run(client, keys, arguments))


def rows_left(client: Client, stream: str, run: Run) -> int:
    """Rows of earlier runs that no task of this run had."""
    return int(run_command(client, "HLEN", run.rows_key.encode(), stream=stream, group=None))


@dataclass(frozen=True, slots=True)
class TaskKey:
    """Where the server keeps what the attempts of one task have added to one stream."""

    stream: str
    key: str
    batch: int
    window_ms: int
    task: int = 0
    #: Of a write with a name, which may be run again.
    run: Run | None = None

    @property
    def keys(self) -> list[str]:
        """Those of its script."""
        keys = [self.stream, self.key]
        return keys if self.run is None else [*keys, self.run.runs_key, self.run.rows_key]


def rows_recorded(client: Client, keys: Sequence[str]) -> list[int]:
    """For each key of a task and a stream, how many rows the server knows of; in one round trip."""
    pipeline: Any = client.pipeline(transaction=False)
    for key in keys:
        pipeline.strlen(key)
    with visible_errors("STRLEN", stream=keys[0] if keys else "", group=None):
        return [max(0, int(length) - _BEFORE_HASHES) // 8 for length in pipeline.execute()]


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
            If there are fewer than are known, the server has lost some.
    """

    def receive(reply: Any) -> None:
        if reply == 0:
            on_reply(None)
            return
        digest, unknown, count = reply
        on_reply((AddedRows(count, digest.decode()), np.frombuffer(unknown, dtype="<u8")))

    fixed: list[Argument] = [task.window_ms, f"{task.batch:020}", known.count, known.digest, after.digest]
    run = "" if task.run is None else f"{task.run.number:020}"
    arguments: list[Argument] = [*fixed, hashes.astype("<u8").tobytes(), run, task.task]
    _send(connection, _ADD_ROWS_OF_TASK, task.keys, arguments, receive, packed)


def _send(
    connection: ServerConnection,
    script: LuaScript,
    keys: Sequence[str],
    arguments: Sequence[Argument],
    on_reply: Callable[[Any], object],
    packed: pa.StringArray | None = None,
) -> None:
    def receive(reply: Any) -> None:
        if isinstance(reply, Exception):
            raise queue_error("EVAL", reply, stream=keys[0], group=None) from reply
        on_reply(reply)

    # Its text weighs nothing beside some hundred rows, and a server that failed over knows no digests.
    connection.send(["EVAL", script.text, len(keys), *keys, *arguments], receive, packed)
