"""64 bits for each row, the same in every process, computed for a whole column at once."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conquiet.spark.wire.texts import bounds_of

Hashes = NDArray[np.uint64]

# Odd constants without a pattern; every row that was ever written depends on them staying as they are.
_SEED, _FACTOR = np.uint64(0x243F6A8885A308D3), np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
#: As the finaliser of MurmurHash3 does it, with the constants of SplitMix64.
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)

#: Longer rows are rare: they are hashed one by one.
_LONGEST = 4_096

#: What makes a row a whole number of words, by its length modulo 8.
_PADS = pa.array(["\0" * (-length % 8) for length in range(8)], pa.string())
_NOTHING = pa.scalar("")


def hash_rows(texts: pa.StringArray) -> Hashes:
    """The hash of each text; a null has that of an empty one, turned around."""
    if texts.null_count:
        is_null = texts.is_null().to_numpy(zero_copy_only=False)
        hashes = hash_rows(texts.fill_null(""))
        return np.where(is_null, ~hashes, hashes)
    starts, ends = bounds_of(texts)
    lengths = ends - starts
    if not len(texts) or lengths.max() <= _LONGEST:
        return _hash_words(texts, lengths)
    is_long = lengths > _LONGEST
    hashes = np.empty(len(texts), dtype=np.uint64)
    hashes[~is_long] = _hash_words(texts.filter(pa.array(~is_long)), lengths[~is_long])
    for index in np.flatnonzero(is_long):
        digest = blake2b(texts[int(index)].as_buffer(), digest_size=8).digest()
        hashes[index] = int.from_bytes(digest, "little")
    return hashes


def combine(*columns: Hashes) -> Hashes:
    """One hash of several columns; their order counts."""
    hashes = np.full(len(columns[0]), _SEED)
    for column in columns:
        _mix(hashes, column.copy())
    return hashes


def _hash_words(texts: pa.StringArray, lengths: NDArray[np.int64]) -> Hashes:
    hashes = _SEED ^ lengths.astype(np.uint64)
    if not len(texts):
        return hashes
    pads = _PADS.take(pa.array(lengths & 7))
    padded = pc.binary_join_element_wise(texts, pads, _NOTHING)
    starts, ends = (places >> 3 for places in bounds_of(padded))
    words: Any = np.frombuffer(padded.buffers()[2] or b"", dtype="<u8")
    counts = ends - starts
    shortest, longest = int(counts.min()), int(counts.max())
    places, some = starts.copy(), np.empty_like(hashes)
    for _ in range(shortest):
        np.take(words, places, out=some, mode="clip")
        _mix(hashes, some)
        places += 1
    left = np.flatnonzero(counts > shortest)
    for number in range(shortest, longest):
        of_left = hashes[left]
        _mix(of_left, words[starts[left] + number])
        hashes[left] = of_left
        left = left[counts[left] > number + 1]
    return hashes


def _mix(hashes: Hashes, words: Hashes) -> None:
    """Mix one word into each hash, in place; the words are used up."""
    # Each bit of a word reaches all bits before it meets the hash: else the next word of a plain text could
    # undo what this one did.
    shifted = np.empty_like(words)
    for shift, factor in _ROUNDS:
        np.right_shift(words, shift, out=shifted)
        np.bitwise_xor(words, shifted, out=words)
        np.multiply(words, factor, out=words)
    np.right_shift(words, _LAST_SHIFT, out=shifted)
    np.bitwise_xor(words, shifted, out=words)
    np.bitwise_xor(hashes, words, out=hashes)
    np.multiply(hashes, _FACTOR, out=hashes)
    np.right_shift(hashes, _SHIFT, out=words)
    np.bitwise_xor(hashes, words, out=hashes)
