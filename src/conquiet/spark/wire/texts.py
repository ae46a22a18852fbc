"""Columns of text as bytes in the column's buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from conquiet.payload import decode_payload


def bounds_of(texts: pa.StringArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each text starts and ends in the array's buffer."""
    offsets: Any = np.frombuffer(texts.buffers()[1] or bytes(4), dtype=np.int32)
    offsets = offsets[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    return offsets[:-1], offsets[1:]


def packed_texts(texts: pa.StringArray) -> pa.StringArray:
    """Each text as an argument of a Redis command: without an object for each of them."""
    lengths = pc.binary_length(texts).cast(pa.string())
    return pc.binary_join_element_wise("$", lengths, "\r\n", texts, "\r\n", "")


def joined_bytes(texts: pa.StringArray) -> memoryview:
    """All texts, one after the other."""
    offsets = np.frombuffer(texts.buffers()[1] or bytes(4), dtype=np.int32)
    start, end = int(offsets[texts.offset]), int(offsets[texts.offset + len(texts)])
    return memoryview(texts.buffers()[2] or b"")[start:end]


def pieces(texts: pa.StringArray, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.StringArray:
    """A piece of each text, by where it starts and ends in the array's buffer."""
    offsets = np.concatenate([[0], np.stack([starts, ends], axis=1).ravel()]).astype(np.int32)
    parts = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), texts.buffers()[2])
    return parts.take(pa.array(np.arange(len(starts)) * 2 + 1))


def looks_like_objects(texts: pa.StringArray) -> NDArray[np.bool_]:
    """Whether each text begins and ends with a brace; true for a null."""
    starts, ends = bounds_of(texts)
    buffer = np.frombuffer(texts.buffers()[2] or b"\0", dtype=np.uint8)
    opens = buffer[np.minimum(starts, len(buffer) - 1)] == ord("{")
    has_braces: NDArray[np.bool_] = opens & (buffer[ends - 1] == ord("}")) & (ends - starts >= 2)
    has_braces |= texts.is_null().to_numpy(zero_copy_only=False)
    return has_braces


def check_objects(data: pa.StringArray) -> None:
    """Refuse a text that is not one JSON object: what is behind its end would be members of the envelope.

    Args:
        data: texts in braces.

    Raises:
        ValueError: with the first one.
    """
    if not len(data):
        return
    lines = pc.binary_join(pa.ListArray.from_arrays([0, len(data)], data), "\n")[0].as_buffer()
    try:
        # An object goes on behind a line's end only where a line could not begin with a brace: so there are
        # as many objects as lines only if each line is one.
        objects = pa.json.read_json(
            pa.BufferReader(lines),
            pa.json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            pa.json.ParseOptions(explicit_schema=pa.schema([]), unexpected_field_behavior="ignore"),
        ).num_rows
    except pa.ArrowInvalid:
        objects = -1
    text = lines.to_pybytes()
    # Arrow takes what JSON does not have for numbers, and a NUL may end what it parses; these letters may
    # also be a part of a text.
    if objects != len(data) or any(sign in text for sign in (b"NaN", b"Inf", b"\0")):
        for one in data.to_pylist():
            try:
                decode_payload(one.encode())
            except ValueError as error:
                raise ValueError(f"data must be a JSON object, got {one!r:.100}: {error}") from error
