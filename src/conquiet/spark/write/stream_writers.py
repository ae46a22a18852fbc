"""How rows get into one stream: each once per task, each once by its name, or just added."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from redis.exceptions import NoScriptError

from conquiet.queue.connection import queue_error
from conquiet.spark.errors import RowsDifferError
from conquiet.spark.scripts import ADD_NAMED_ROWS, ADD_ROWS
from conquiet.spark.task_context import Attempt
from conquiet.spark.wire.bulks import bulks, bytes_of, chunks_of
from conquiet.spark.wire.connection import bulk
from conquiet.spark.wire.node_wire import NodeWire, script_head
from conquiet.spark.write.row_hashes import Hashes
from conquiet.spark.write.targets import Load

#: What one script adds at most: the server does nothing else meanwhile.
_MOST_ROWS, _MOST_BYTES = 500, 1 << 20

_NO_DIGEST = "0" * 16

#: As the number of a batch: whoever comes with any other is too late.
AFTER_EVERY_BATCH = "9" * 20


@dataclass(frozen=True, slots=True)
class _Chunk:
    rows: pa.Array
    hashes: Hashes
    digest: str

    def __len__(self) -> int:
        return len(self.hashes)


class TaskLane:
    """Adds each row once, whatever earlier or parallel attempts of the task have added, in any order."""

    def __init__(self, node: NodeWire, stream: str, key: str, attempt: Attempt, window_ms: int) -> None:
        self._node = node
        self._stream = stream
        self._keys = [stream, key]
        self._attempt = attempt
        self._fixed = [str(window_ms).encode(), f"{attempt.batch:020}".encode()]
        #: Rows of the task in the stream and the digest over them: as confirmed, and as it will be.
        self._known, self._digest = 0, _NO_DIGEST
        self._coming, self._coming_digest = 0, _NO_DIGEST
        #: What other attempts have added and this one has not come to yet.
        self._others: Counter[int] = Counter()
        self._refused: list[_Chunk] = []
        node.load(ADD_ROWS)

    def add(self, load: Load) -> None:
        """Send rows; an error may be that of rows sent before."""
        self._push_all(load.data, load.hashes)
        while self._refused:
            self._push_refused()

    def finish(self) -> None:
        """Wait until every row is in the stream.

        Raises:
            RowsDifferError: another attempt has added rows that this one does not have.
        """
        if not self._coming:
            # Nothing to add: all that others have added is too much.
            nothing = np.empty(0, dtype=np.uint64)
            self._push(_Chunk(pa.array([], pa.string()), nothing, self._digest), pa.array([], pa.string()))
        self._node.settle_all()
        while self._refused:
            self._push_refused()
        extra = self._others.total()
        if extra:
            raise RowsDifferError(stream=self._stream, task=self._attempt.task, extra=extra)

    def _push_all(self, data: pa.Array, hashes: Hashes) -> None:
        if self._others:
            rows = self._not_added_by_others(hashes)
            data, hashes = data.take(pa.array(rows)), hashes[rows]
        texts = bulks(data)
        for first, last in chunks_of(texts, _MOST_ROWS, _MOST_BYTES):
            some = hashes[first:last]
            digest = _digest_after(self._coming_digest, some)
            self._push(
                _Chunk(data.slice(first, last - first), some, digest), texts.slice(first, last - first)
            )

    def _push(self, chunk: _Chunk, texts: pa.Array) -> None:
        digests = [self._coming_digest.encode(), chunk.digest.encode()]
        arguments = [*self._fixed, str(self._coming).encode(), *digests, chunk.hashes.astype("<u8").tobytes()]
        head = script_head(ADD_ROWS, self._keys, arguments, len(chunk))
        self._coming, self._coming_digest = self._coming + len(chunk), chunk.digest
        self._node.push([head, bytes_of(texts)], partial(self._settle, chunk))

    def _settle(self, chunk: _Chunk, reply: Any) -> None:
        if self._refused:
            # It was sent on the belief that the one before it would be added.
            self._refused.append(chunk)
        elif reply == 0:
            self._known, self._digest = self._known + len(chunk), chunk.digest
        elif isinstance(reply, NoScriptError) and len(chunk):
            self._refused.append(chunk)
        elif isinstance(reply, Exception):
            raise queue_error("EVALSHA", reply, stream=self._stream, group=None) from reply
        else:
            digest, added = reply
            others = np.frombuffer(added, dtype="<u8")
            self._known, self._digest = self._known + len(others), digest.decode()
            self._others.update(others.tolist())
            self._refused.append(chunk)

    def _push_refused(self) -> None:
        self._node.load(ADD_ROWS)
        chunks, self._refused = self._refused, []
        self._coming, self._coming_digest = self._known, self._digest
        for chunk in chunks:
            self._push_all(chunk.rows, chunk.hashes)
        self._node.settle_all()

    def _not_added_by_others(self, hashes: Hashes) -> Any:
        rows = []
        for row, value in enumerate(hashes.tolist()):
            if self._others.get(value, 0):
                self._others[value] -= 1
            else:
                rows.append(row)
        return np.array(rows, dtype=np.int64)


class NamedLane:
    """Adds each row unless its dedupe id was added within the window, by anybody."""

    def __init__(self, node: NodeWire, stream: str, dedupe_keys: list[str], window_ms: int) -> None:
        self._node = node
        self._stream = stream
        self._keys = [stream, *dedupe_keys]
        self._window = str(window_ms).encode()
        node.load(ADD_NAMED_ROWS)

    def add(self, load: Load) -> None:
        """Send rows."""
        if load.names is None or load.names.null_count:
            raise ValueError(f"the dedupe column has no value in some rows for stream {self._stream!r}")
        texts = bulks(load.names.cast(pa.string()), load.data)
        for first, last in chunks_of(texts, _MOST_ROWS, _MOST_BYTES):
            head = script_head(ADD_NAMED_ROWS, self._keys, [self._window], 2 * (last - first))
            self._node.push([head, bytes_of(texts.slice(first, last - first))], self._settle)

    def finish(self) -> None:
        """Wait for every reply."""
        self._node.settle_all()

    def _settle(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            raise queue_error("EVALSHA", reply, stream=self._stream, group=None) from reply


class PlainLane:
    """Adds rows; a task that is tried again adds them again."""

    def __init__(self, node: NodeWire, stream: str) -> None:
        self._node = node
        self._stream = stream
        self._head = (b"*5\r\n$4\r\nXADD\r\n" + bulk(stream.encode()) + b"$1\r\n*\r\n$4\r\ndata\r\n").decode()

    def add(self, load: Load) -> None:
        """Send rows."""
        texts = bulks(load.data, prefix=self._head)
        for first, last in chunks_of(texts, _MOST_ROWS, _MOST_BYTES):
            self._node.push_many(bytes_of(texts.slice(first, last - first)), self._settle)

    def finish(self) -> None:
        """Wait for every reply."""
        self._node.settle_all()

    def _settle(self, reply: Any) -> None:
        text = reply.tobytes()
        if text.startswith(b"-") or b"\n-" in text:
            error = text[text.find(b"\n-") + 1 :].partition(b"\r")[0].decode(errors="replace")
            raise queue_error("XADD", RuntimeError(error), stream=self._stream, group=None)


Lane = TaskLane | NamedLane | PlainLane


def _digest_after(digest: str, hashes: Hashes) -> str:
    return blake2b(hashes.astype("<u8").tobytes(), key=digest.encode(), digest_size=8).hexdigest()
