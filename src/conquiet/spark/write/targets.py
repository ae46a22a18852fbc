"""Which stream each row goes to: the rows of one Arrow batch by stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conquiet.queue.connection import key_beside
from conquiet.spark.options import WriteOptions
from conquiet.spark.scripts import Hashes
from conquiet.spark.wire.texts import check_objects, looks_like_objects
from conquiet.spark.write.row_hashes import hash_rows

#: What JSON allows around a value.
_JSON_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows for one stream, in order."""

    stream: str
    data: pa.Array
    hashes: Hashes
    #: The values of `dedupeColumn`.
    ids: pa.Array | None


class Target(Protocol):
    """Where rows go."""

    #: All that rows can go to.
    streams: list[str]

    def rows_by_stream(self, batch: pa.RecordBatch) -> Iterator[StreamRows]:
        """The rows of an Arrow batch, by stream."""

    def dedupe_keys(self, stream: str) -> list[str]:
        """Where the dedupe ids of a stream are kept, and until when each is known."""

    def spread_over(self, count: int) -> None:
        """Give rows the partitions that they have in a topic of `count` partitions."""


class StreamTarget:
    """A plain stream: the payloads as they are."""

    def __init__(self, stream: str, options: WriteOptions) -> None:
        self.streams = [stream]
        self._dedupe_column = options.dedupe_column

    def rows_by_stream(self, batch: pa.RecordBatch) -> Iterator[StreamRows]:
        """All rows, for the one stream."""
        data = payloads_of(batch)
        for name in ("key", "headers"):
            if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
                raise ValueError(f"a plain stream has no place for the column {name!r}: write to a topic")
        yield StreamRows(self.streams[0], data, hash_rows(data), column_of(batch, self._dedupe_column))

    def dedupe_keys(self, stream: str) -> list[str]:
        """Two keys beside the stream."""
        return [key_beside(stream, "deduped"), key_beside(stream, "deduped:until")]

    def spread_over(self, count: int) -> None:
        """There is one stream only."""


def payloads_of(batch: pa.RecordBatch) -> pa.StringArray:
    """The column `data` as text, without white space around the objects.

    Raises:
        ValueError: a payload is null, is not UTF-8, or is not a JSON object.
    """
    data = utf8_of(batch.column("data"), "data")
    if data.null_count:
        raise ValueError("data must be a JSON object, got None; `publish` makes one of columns")
    if not looks_like_objects(data).all():
        data = pc.utf8_trim(data, _JSON_SPACE)
        is_object = looks_like_objects(data)
        if not is_object.all():
            wrong = data[int(np.argmin(is_object))].as_py()
            raise ValueError(
                f"data must be a JSON object, got {wrong!r:.100}; `publish` makes one of columns"
            )
    check_objects(data)
    return data


def utf8_of(texts: pa.Array, name: str) -> pa.StringArray:
    """A column as text; of a column of text, Spark has not checked that it is UTF-8.

    Raises:
        ValueError: it is not.
    """
    try:
        return texts.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise ValueError(f"{name} must be UTF-8: {error}") from error


def column_of(batch: pa.RecordBatch, name: str | None, kind: pa.DataType | None = None) -> pa.Array | None:
    """A column, if the batch has it."""
    if name is None or name not in batch.schema.names:
        return None
    column = batch.column(name)
    return column if kind is None else column.cast(kind)
