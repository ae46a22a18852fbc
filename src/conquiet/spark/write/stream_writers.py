"""How rows are added to one stream: each once per task, each once per dedupe id, or without a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from redis.exceptions import ResponseError

from conquiet.queue.connection import queue_error
from conquiet.spark.errors import RowsDifferError
from conquiet.spark.scripts import AddedRows, Hashes, TaskKey, add_rows_by_id, add_rows_of_task
from conquiet.spark.wire.connection import ServerConnection
from conquiet.spark.wire.texts import bounds_of, packed_texts
from conquiet.spark.write.targets import StreamRows

#: What one script adds at most: the server does nothing else meanwhile.
_MOST_ROWS, _MOST_BYTES = 500, 1 << 20


@dataclass(frozen=True, slots=True)
class _Chunk:
    data: pa.Array
    #: The same as arguments of a command.
    packed: pa.Array
    hashes: Hashes
    #: What is in the stream once the chunk is added.
    after: AddedRows


class OncePerTaskWriter:
    """Adds each row once, whatever earlier or parallel attempts of the task have added, in any order."""

    def __init__(self, connection: ServerConnection, task: TaskKey, task_number: int) -> None:
        self._connection = connection
        self._task = task
        self._task_number = task_number
        #: Rows of the task in the stream: as confirmed, and as it will be if no other attempt adds any.
        self._added = self._expected = AddedRows()
        #: Rows that other attempts have added, and that this one has not come to yet, by their hash.
        self._others: Counter[int] = Counter()
        self._refused: list[_Chunk] = []

    def add(self, rows: StreamRows) -> None:
        """Send rows; an error may be that of rows sent before."""
        self._send_all(rows.data, rows.hashes)
        self._send_refused()

    def finish(self) -> None:
        """Wait until every row is in the stream.

        Raises:
            RowsDifferError: another attempt has added rows that this one does not have.
        """
        if not self._expected.count:
            # Without rows: any row that another attempt has added is one too many.
            none = pa.array([], pa.string())
            self._send(_Chunk(none, none, np.empty(0, dtype=np.uint64), self._expected))
        self._connection.wait()
        self._send_refused()
        if extra := self._others.total():
            raise RowsDifferError(stream=self._task.stream, task=self._task_number, extra=extra)

    def _send_all(self, data: pa.Array, hashes: Hashes) -> None:
        if self._others:
            missing = []
            for row, value in enumerate(hashes.tolist()):
                if self._others.get(value, 0):
                    self._others[value] -= 1
                else:
                    missing.append(row)
            data, hashes = data.take(pa.array(missing, pa.int64())), hashes[missing]
        packed = packed_texts(data)
        for first, last in _chunks_of(data):
            some, count = hashes[first:last], last - first
            after = self._expected.and_then(some)
            self._send(_Chunk(data.slice(first, count), packed.slice(first, count), some, after))

    def _send(self, chunk: _Chunk) -> None:
        known, self._expected = self._expected, chunk.after
        settle = partial(self._settle, chunk)
        add_rows_of_task(self._connection, self._task, known, chunk.after, chunk.packed, chunk.hashes, settle)

    def _settle(self, chunk: _Chunk, others: tuple[AddedRows, Hashes] | None) -> None:
        if self._refused:
            # Sent on the assumption that the one before it would be added; whether it was is asked again.
            self._refused.append(chunk)
        elif others is None:
            self._added = chunk.after
        else:
            self._added, hashes = others
            self._others.update(hashes.tolist())
            self._refused.append(chunk)

    def _send_refused(self) -> None:
        while self._refused:
            # What is still in flight is refused too.
            self._connection.wait()
            chunks, self._refused = self._refused, []
            self._expected = self._added
            for chunk in chunks:
                self._send_all(chunk.data, chunk.hashes)
            self._connection.wait()


class OncePerIdWriter:
    """Adds each row unless its dedupe id was added within the window, by any producer."""

    def __init__(
        self, connection: ServerConnection, stream: str, dedupe_keys: list[str], window_ms: int
    ) -> None:
        self._connection = connection
        self._keys = [stream, *dedupe_keys]
        self._window_ms = window_ms

    def add(self, rows: StreamRows) -> None:
        """Send rows; an error may be that of rows sent before."""
        if rows.ids is None or rows.ids.null_count:
            raise ValueError(f"the dedupe column has no value in some rows for stream {rows.stream!r}")
        ids = _bytes_of(rows.ids.cast(pa.string()))
        for first, last in _chunks_of(rows.data):
            data = _bytes_of(rows.data.slice(first, last - first))
            add_rows_by_id(self._connection, self._keys, ids[first:last], data, self._window_ms)

    def finish(self) -> None:
        """Wait until every row is in the stream."""
        self._connection.wait()


class PlainWriter:
    """Adds rows; a task that is tried again adds them again."""

    def __init__(self, connection: ServerConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        # redis-py packs the command of an empty row; Arrow joins each row and its length to the start of it.
        empty = connection.pack("XADD", stream, "*", "data", "")
        self._command_start = empty.decode().removesuffix("0\r\n\r\n")

    def add(self, rows: StreamRows) -> None:
        lengths = pc.binary_length(rows.data).cast(pa.string())
        commands = pc.binary_join_element_wise(self._command_start, lengths, "\r\n", rows.data, "\r\n", "")
        starts, ends = bounds_of(commands)
        packed = memoryview(commands.buffers()[2])
        for first, last in _chunks_of(rows.data):
            self._connection.send_raw(packed[int(starts[first]) : int(ends[last - 1])])
            replies = self._connection.receive_raw().tobytes()
            if (start := (b"\n" + replies).find(b"\n-")) >= 0:
                error = ResponseError(replies[start + 1 :].partition(b"\r")[0].decode(errors="replace"))
                raise queue_error("XADD", error, stream=self._stream, group=None)

    def finish(self) -> None:
        """Every row is in the stream already."""


StreamWriter = OncePerTaskWriter | OncePerIdWriter | PlainWriter


def _chunks_of(texts: pa.Array) -> Iterator[tuple[int, int]]:
    starts, ends = bounds_of(texts)
    first = 0
    while first < len(texts):
        fitting = int(np.searchsorted(ends, starts[first] + _MOST_BYTES, side="right"))
        last = max(first + 1, min(fitting, first + _MOST_ROWS))
        yield first, last
        first = last


def _bytes_of(texts: pa.Array) -> list[bytes]:
    rows: list[bytes] = texts.cast(pa.binary()).to_pylist()
    return rows
