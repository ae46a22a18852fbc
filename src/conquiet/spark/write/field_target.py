"""A stream as the target of a write: each column of a row becomes a field of its entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from conquiet.queue.connection import key_beside
from conquiet.spark.columns import FIELD_TYPES
from conquiet.spark.options import WriteOptions
from conquiet.spark.write.row_hashes import hash_rows
from conquiet.spark.write.targets import StreamRows, column_of, utf8_of

#: Redis' Lua cannot hand more arguments than some thousands to a command.
_MOST_FIELDS = 1_000

#: MessagePack's heads of an array and of a text, each followed by 4 bytes of length: what the scripts unpack.
_ARRAY, _TEXT = b"\xdd", b"\xdb"


def field_columns(options: WriteOptions, schema: types.StructType) -> list[str]:
    """The columns that become fields.

    Raises:
        ValueError: there is none, or one that is not there.
        TypeError: a column has a type that is not one text.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    text = (options.fields or "").strip()
    names = list(kinds) if text == "*" else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in kinds]
    if unknown or not 0 < len(names) <= _MOST_FIELDS:
        raise ValueError(
            f"fields must name columns of the DataFrame, {_MOST_FIELDS:,} at most; "
            f"it has no {', '.join(unknown)}"
        )
    for name in names:
        if not isinstance(kinds[name], FIELD_TYPES):
            raise TypeError(
                f"column {name!r} of type {kinds[name].simpleString()} is not one field: "
                "make it a text with to_json"
            )
    return names


class FieldTarget:
    """Each row is an entry: its columns as texts; a null is no field."""

    def __init__(self, stream: str, options: WriteOptions, names: Sequence[str]) -> None:
        self.streams = [stream]
        self._names = names
        self._dedupe_column = options.dedupe_column

    def rows_by_stream(self, batch: pa.RecordBatch) -> Iterator[StreamRows]:
        """All rows, each as an array of MessagePack: names and values in turns."""
        counts = np.zeros(batch.num_rows, dtype=np.int64)
        parts: list[Any] = []
        for name in self._names:
            values = field_texts(name, batch.column(name))
            is_field = values.is_valid().to_numpy(zero_copy_only=False)
            counts += is_field
            head = _TEXT + len(name.encode()).to_bytes(4, "big") + name.encode() + _TEXT
            lengths = _four_bytes(pc.binary_length(values).fill_null(0).to_numpy())
            field = pc.binary_join_element_wise(pa.scalar(head), lengths, values.fill_null(b""), b"")
            parts.append(pc.if_else(values.is_valid(), field, b""))
        if batch.num_rows and not counts.all():
            raise ValueError(f"a row without any value in {', '.join(self._names):.200} makes no entry")
        entries = pc.binary_join_element_wise(pa.scalar(_ARRAY), _four_bytes(2 * counts), *parts, b"")
        # Writers move bytes, whatever their type.
        texts = entries.view(pa.string())
        yield StreamRows(self.streams[0], texts, hash_rows(texts), column_of(batch, self._dedupe_column))

    def dedupe_keys(self, stream: str) -> list[str]:
        """Two keys beside the stream."""
        return [key_beside(stream, "deduped"), key_beside(stream, "deduped:until")]

    def spread_over(self, count: int) -> None:
        """There is one stream only."""


def field_texts(name: str, values: pa.Array) -> pa.BinaryArray:
    """Values as the bytes of fields: as `fields` reads them again."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return values.cast(pa.binary())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return utf8_of(values, name).cast(pa.binary())
    if pa.types.is_timestamp(kind):
        texts = pc.strftime(
            values.cast(pa.timestamp("us", None if kind.tz is None else "UTC")), format="%Y-%m-%dT%H:%M:%S"
        )
        if kind.tz is not None:
            texts = pc.binary_join_element_wise(texts, "Z", "")
        return texts.cast(pa.binary())
    return values.cast(pa.string()).cast(pa.binary())


def _four_bytes(numbers: Any) -> pa.Array:
    """Each number as 4 bytes, the highest first."""
    packed = np.asarray(numbers).astype(">u4").tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(4), len(numbers), [None, pa.py_buffer(packed)]
    ).cast(pa.binary())
