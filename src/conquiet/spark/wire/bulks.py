"""Columns in the form of the protocol: the bytes of all rows at once, and where each row ends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conquiet.spark.wire.texts import bounds_of

_CRLF, _NOTHING = pa.scalar("\r\n"), pa.scalar("")

#: Lengths below this have their text ready.
_READY = 1 << 16
_HEADS = pa.array([f"${length}" for length in range(_READY)], pa.string())


def bulks(*columns: pa.Array, prefix: str = "") -> pa.StringArray:
    """One text for each row: the prefix, then each of its columns as one argument of a command."""
    parts = []
    for column in columns:
        parts += [_heads(column), column]
    if prefix:
        parts[0] = pc.binary_join_element_wise(pa.scalar(prefix), parts[0], _NOTHING)
    return pc.binary_join_element_wise(*parts, _NOTHING, _CRLF)


def bytes_of(texts: pa.StringArray) -> memoryview:
    """The texts one after the other, without copying them."""
    starts, ends = bounds_of(texts)
    if not len(texts):
        return memoryview(b"")
    return memoryview(texts.buffers()[2])[int(starts[0]) : int(ends[-1])]


def chunks_of(texts: pa.StringArray, most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut an array into stretches of so many rows and bytes at most, but always one row."""
    starts, ends = bounds_of(texts)
    first = 0
    while first < len(texts):
        fitting = int(np.searchsorted(ends, starts[first] + most_bytes, side="right"))
        last = max(first + 1, min(fitting, first + most_rows))
        yield first, last
        first = last


def _heads(column: pa.Array) -> pa.StringArray:
    lengths = pc.binary_length(column)
    if (pc.max(lengths).as_py() or 0) < _READY:
        return _HEADS.take(lengths)
    return pc.binary_join_element_wise(pa.scalar("$"), lengths.cast(pa.string()), _NOTHING)
