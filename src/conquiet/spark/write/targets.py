"""Which stream each row goes to: rows of one Arrow batch, sorted out by stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from conquiet.queue.connection import key_beside
from conquiet.spark.options import WriteOptions
from conquiet.spark.wire.texts import looks_like_objects
from conquiet.spark.write.row_hashes import Hashes, hash_rows


@dataclass(frozen=True, slots=True)
class Load:
    """Rows for one stream, in order."""

    stream: str
    data: pa.Array
    hashes: Hashes
    #: Dedupe ids, if a column has them.
    names: pa.Array | None


class StreamTarget:
    """A plain stream: the payloads as they are."""

    def __init__(self, stream: str, options: WriteOptions) -> None:
        self.streams = [stream]
        self._names = options.dedupe_column

    def loads(self, batch: pa.RecordBatch) -> Iterator[Load]:
        """All rows, for the one stream."""
        data = data_of(batch)
        for name in ("key", "headers"):
            if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
                raise ValueError(f"a plain stream has no place for the column {name!r}: write to a topic")
        yield Load(self.streams[0], data, hash_rows(data), column_of(batch, self._names))

    def dedupe_keys(self, stream: str) -> list[str]:
        """Where dedupe ids are kept."""
        return [key_beside(stream, "deduped"), key_beside(stream, "deduped:until")]

    def spread_over(self, count: int) -> None:
        """There is one stream only."""


class Target(Protocol):
    """Where rows go."""

    #: All that rows can go to.
    streams: list[str]

    def loads(self, batch: pa.RecordBatch) -> Iterator[Load]:
        """The rows of an Arrow batch, by stream."""

    def dedupe_keys(self, stream: str) -> list[str]:
        """Where the dedupe ids of a stream are kept, and until when each is known."""

    def spread_over(self, count: int) -> None:
        """Give rows the partitions that they have in a topic of `count` partitions."""


def data_of(batch: pa.RecordBatch) -> pa.Array:
    """The payloads, as text.

    Raises:
        ValueError: one is null, or no JSON object.
    """
    data = _as_text(batch.column("data"))
    looks_right = looks_like_objects(data)
    if data.null_count or not looks_right.all():
        wrong = None if data.null_count else data[int(np.argmin(looks_right))].as_py()
        raise ValueError(f"data must be a JSON object, got {wrong!r:.100}; `publish` makes one of columns")
    return data


def column_of(batch: pa.RecordBatch, name: str | None, kind: pa.DataType | None = None) -> pa.Array | None:
    """A column, if the batch has it."""
    if name is None or name not in batch.schema.names:
        return None
    column = batch.column(name)
    return column if kind is None else column.cast(kind)


def _as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise ValueError(f"data must be UTF-8: {error}") from error
