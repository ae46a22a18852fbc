"""How rows are added to one stream: each once per task, each once per dedupe id, or without a check."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from redis.exceptions import ResponseError

from conquiet.errors import QueueError
from conquiet.queue.connection import queue_error
from conquiet.spark.errors import RowsDifferError, RowsLostError
from conquiet.spark.outages import Patience
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


class Line:
    """The connection that a writer uses: another one after an outage, which may go to another server."""

    def __init__(self, connect: Callable[[], ServerConnection], patience: Patience) -> None:
        self._connect = connect
        self._patience = patience
        self.connection = connect()

    def keep_trying(self, send: Callable[[], None], begin_anew: Callable[[], None]) -> None:
        """Call `send` until it succeeds; before it uses another connection, `begin_anew`.

        Replies that were on their way on the one before are lost: what was sent may be done, or not.

        Raises:
            QueueError: the outage lasts too long, or it is none.
        """
        while True:
            try:
                if self.connection.is_closed:
                    self.connection = self._connect()
                    begin_anew()
                send()
            except QueueError as error:
                self.connection.close()
                self._patience.wait(error)
            else:
                self._patience.end()
                return


class OncePerTaskWriter:
    """Adds each row once, whatever earlier or parallel attempts of the task have added, in any order."""

    def __init__(self, line: Line, task: TaskKey, task_number: int) -> None:
        self._line = line
        self._task = task
        self._task_number = task_number
        #: Rows of the task in the stream: as confirmed, and as it will be if no other attempt adds any.
        self._added = self._expected = AddedRows()
        #: Rows that other attempts have added, and that this one has not come to yet, by their hash.
        self._others: Counter[int] = Counter()
        #: Not sent; sent, without a reply; sent, and not added since others have added rows: each in order.
        self._unsent: deque[_Chunk] = deque()
        self._sent: deque[_Chunk] = deque()
        self._refused: list[_Chunk] = []

    @property
    def record(self) -> tuple[str, int]:
        """The key by which another attempt of the task knows what was added, and how many rows that is."""
        return self._task.key, self._added.count

    def add(self, rows: StreamRows) -> None:
        """Send rows; an error may be that of rows sent before."""
        self._unsent.extend(self._chunks_of(rows.data, rows.hashes))
        self._line.keep_trying(self._send, self._begin_anew)

    def finish(self) -> None:
        """Wait until every row is in the stream.

        Raises:
            RowsDifferError: another attempt has added rows that this one does not have.
        """
        if not self._expected.count and not self._unsent:
            # Without rows: any row that another attempt has added is one too many.
            none = pa.array([], pa.string())
            self._unsent.append(_Chunk(none, none, np.empty(0, dtype=np.uint64)))
        self._line.keep_trying(self._send_and_wait, self._begin_anew)
        if extra := self._others.total():
            raise RowsDifferError(stream=self._task.stream, task=self._task_number, extra=extra)

    def _chunks_of(self, data: pa.Array, hashes: Hashes) -> Iterator[_Chunk]:
        """Rows that others have not added."""
        if self._others:
            missing = []
            for row, value in enumerate(hashes.tolist()):
                if self._others.get(value, 0):
                    self._others[value] -= 1
                else:
                    missing.append(row)
            data, hashes = data.take(pa.array(missing, pa.int64())), hashes[missing]
        packed = packed_texts(data)
        for first, last in _bounds_of_chunks(data):
            count = last - first
            yield _Chunk(data.slice(first, count), packed.slice(first, count), hashes[first:last])

    def _send(self) -> None:
        while self._unsent or self._refused:
            while self._unsent:
                chunk = self._unsent.popleft()
                self._sent.append(chunk)
                known, self._expected = self._expected, self._expected.and_then(chunk.hashes)
                settle = partial(self._settle, chunk, self._expected)
                add_rows_of_task(
                    self._line.connection,
                    self._task,
                    known,
                    self._expected,
                    chunk.packed,
                    chunk.hashes,
                    settle,
                )
            if self._refused:
                # What is still in flight is refused too.
                self._line.connection.wait()
                self._begin_anew()

    def _send_and_wait(self) -> None:
        self._send()
        self._line.connection.wait()
        if self._refused:
            self._begin_anew()
            self._send_and_wait()

    def _settle(self, chunk: _Chunk, after: AddedRows, others: tuple[AddedRows, Hashes] | None) -> None:
        self._sent.popleft()
        if self._refused:
            # Sent on the assumption that the one before it would be added; whether it was is asked again.
            self._refused.append(chunk)
        elif others is None:
            self._added = after
        else:
            known, (self._added, hashes) = self._added, others
            if self._added.count < known.count:
                raise RowsLostError(stream=self._task.stream, rows=known.count - self._added.count)
            self._others.update(hashes.tolist())
            self._refused.append(chunk)

    def _begin_anew(self) -> None:
        """Make ready to send again what is not confirmed, behind what is."""
        chunks = [*self._refused, *self._sent, *self._unsent]
        self._refused, self._expected = [], self._added
        self._sent.clear()
        self._unsent.clear()
        for chunk in chunks:
            # One without rows asks what others have added.
            again = self._chunks_of(chunk.data, chunk.hashes) if len(chunk.data) else [chunk]
            self._unsent.extend(again)


class OncePerIdWriter:
    """Adds each row unless its dedupe id was added within the window, by any producer."""

    def __init__(self, line: Line, stream: str, dedupe_keys: list[str], window_ms: int) -> None:
        self._line = line
        self._keys = [stream, *dedupe_keys]
        self._window_ms = window_ms
        #: Ids and rows: not sent, and sent without a reply.
        self._unsent: deque[tuple[list[bytes], list[bytes]]] = deque()
        self._sent: deque[tuple[list[bytes], list[bytes]]] = deque()

    def add(self, rows: StreamRows) -> None:
        """Send rows; an error may be that of rows sent before."""
        if rows.ids is None or rows.ids.null_count:
            raise ValueError(f"the dedupe column has no value in some rows for stream {rows.stream!r}")
        ids = _bytes_of(rows.ids.cast(pa.string()))
        for first, last in _bounds_of_chunks(rows.data):
            self._unsent.append((ids[first:last], _bytes_of(rows.data.slice(first, last - first))))
        self._line.keep_trying(self._send, self._begin_anew)

    def finish(self) -> None:
        """Wait until every row is in the stream."""
        self._line.keep_trying(self._send_and_wait, self._begin_anew)

    def _send(self) -> None:
        while self._unsent:
            ids, data = self._unsent.popleft()
            self._sent.append((ids, data))
            add_rows_by_id(self._line.connection, self._keys, ids, data, self._window_ms, self._sent.popleft)

    def _send_and_wait(self) -> None:
        self._send()
        self._line.connection.wait()

    def _begin_anew(self) -> None:
        # Ids that were added are known by now: their rows are not added again.
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()


class PlainWriter:
    """Adds rows; a task that is tried again adds them again, and so does an outage with those in flight."""

    def __init__(self, line: Line, stream: str) -> None:
        self._line = line
        self._stream = stream
        # redis-py packs the command of an empty row; Arrow joins each row and its length to the start of it.
        empty = line.connection.pack("XADD", stream, "*", "data", "")
        self._command_start = empty.decode().removesuffix("0\r\n\r\n")

    def add(self, rows: StreamRows) -> None:
        lengths = pc.binary_length(rows.data).cast(pa.string())
        commands = pc.binary_join_element_wise(self._command_start, lengths, "\r\n", rows.data, "\r\n", "")
        starts, ends = bounds_of(commands)
        packed = memoryview(commands.buffers()[2])
        for first, last in _bounds_of_chunks(rows.data):
            chunk = packed[int(starts[first]) : int(ends[last - 1])]
            self._line.keep_trying(partial(self._send, chunk, last - first), lambda: None)

    def finish(self) -> None:
        """Every row is in the stream already."""

    def _send(self, chunk: memoryview, rows: int) -> None:
        self._line.connection.send_raw(chunk)
        replies = self._line.connection.receive_raw().tobytes()
        if (start := (b"\n" + replies).find(b"\n-")) >= 0:
            error = ResponseError(replies[start + 1 :].partition(b"\r")[0].decode(errors="replace"))
            # Sent once more only if none of them was added, as by a full server.
            cause = error if (b"\n" + replies).count(b"\n-") == rows else None
            raise queue_error("XADD", error, stream=self._stream, group=None) from cause


StreamWriter = OncePerTaskWriter | OncePerIdWriter | PlainWriter


def _bounds_of_chunks(texts: pa.Array) -> Iterator[tuple[int, int]]:
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
