"""The reply of XRANGE, from its bytes to columns: all entries at once where they are as we write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import hiredis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from redis.exceptions import ResponseError

from conquiet.spark.entry_ids import EntryId
from conquiet.spark.wire.texts import bounds_of, pieces

_Bytes = NDArray[np.uint8]
_Indexes = NDArray[np.int64]

# An entry is `*2 CRLF $15 CRLF 1700000000000-0 CRLF *2 CRLF $4 CRLF data CRLF $200 CRLF {…} CRLF`.
_LINE_FEED, _DOLLAR, _LONGEST_COUNT = 10, 36, 32


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries in the order of the stream."""

    ids: pa.BinaryArray
    #: The field `data`; null where an entry has anything but this one field.
    data: pa.BinaryArray
    #: All fields of those others, by index.
    others: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def id_at(self, index: int) -> EntryId:
        return EntryId.parse(self.ids[index].as_py())

    def fields_at(self, index: int) -> tuple[bytes, ...]:
        """Names and values of one entry, in turns."""
        return self.others.get(index) or (b"data", self.data[index].as_py())

    def without_first(self) -> Entries:
        others = {index - 1: fields for index, fields in self.others.items() if index}
        return Entries(self.ids.slice(1), self.data.slice(1), others)


def joined_entries(parts: Sequence[Entries]) -> Entries:
    """All entries, those of each part behind those of the one before it."""
    if len(parts) == 1:
        return parts[0]
    others: dict[int, tuple[bytes, ...]] = {}
    count = 0
    for part in parts:
        others |= {count + index: fields for index, fields in part.others.items()}
        count += len(part)
    ids, data = (pa.concat_arrays([getattr(part, name) for part in parts]) for name in ("ids", "data"))
    return Entries(ids, data, others)


def entries_of(reply: _Bytes) -> Entries:
    """Parse one reply.

    Raises:
        ResponseError: the server's own error.
    """
    if reply[0] == ord("-"):
        raise ResponseError(reply[1:-2].tobytes().decode(errors="replace"))
    entries = as_written_by_us(reply)
    if entries is not None:
        return entries
    reader = hiredis.Reader()
    reader.feed(reply.tobytes())
    ids: list[bytes] = []
    data: list[bytes | None] = []
    others: dict[int, tuple[bytes, ...]] = {}
    for entry_id, fields in reader.gets():
        is_ours = len(fields) == 2 and fields[0] == b"data"
        if not is_ours:
            others[len(ids)] = tuple(fields)
        ids.append(entry_id)
        data.append(fields[1] if is_ours else None)
    return Entries(pa.array(ids, pa.binary()), pa.array(data, pa.binary()), others)


def as_written_by_us(reply: _Bytes) -> Entries | None:
    """All entries at once if each has the one field `data`; else, or if a payload looks like more, `None`."""
    newline = int(np.argmax(reply[:_LONGEST_COUNT] == _LINE_FEED))
    count = int(reply[1 : newline - 1].tobytes())
    marks = np.flatnonzero((reply[:-1] == _LINE_FEED) & (reply[1:] == _DOLLAR))
    # An entry has a mark for its id and two for each of its fields. If there are three for each entry then
    # every entry has one field, and no mark is a part of a payload.
    if len(marks) != 3 * count:
        return None
    if not count:
        return Entries(pa.array([], pa.binary()), pa.array([], pa.binary()))
    id_mark, name_mark, data_mark = marks.reshape(count, 3).T
    is_data = np.array_equal(data_mark, name_mark + 10) and (
        reply[name_mark[:, None] + np.arange(5, 9)] == np.frombuffer(b"data", dtype=np.uint8)
    )
    if not np.all(is_data):
        return None
    id_end, data_end = name_mark - 5, np.append(id_mark[1:] - 3, len(reply)) - 2
    # The reply itself is the buffer of an array in which ids, payloads and what is between them take turns.
    bounds = [_after_length(id_mark, id_end), id_end, _after_length(data_mark, data_end), data_end]
    offsets = np.concatenate([[0], np.stack(bounds, axis=1).ravel(), [len(reply)]]).astype(np.int32)
    parts = pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(reply)]
    )
    index = np.arange(count) * 4
    return Entries(parts.take(pa.array(index + 1)), parts.take(pa.array(index + 3)))


def _after_length(mark: _Indexes, end: _Indexes) -> _Indexes:
    # `LF $ 200 CRLF payload`: how many digits the length has follows from what they and it take together.
    both = end - mark - 4
    digits = np.ones_like(both)
    for more in range(1, len(str(both.max(initial=0)))):
        digits += both >= 10**more + more + 1
    return mark + 4 + digits


def milliseconds_of(ids: pa.BinaryArray) -> NDArray[np.int64]:
    """The milliseconds in each id, at most 2**62."""
    texts = ids.view(pa.string())
    starts, _ = bounds_of(texts)
    milliseconds = pieces(texts, starts, starts + pc.find_substring(texts, "-").to_numpy())
    try:
        numbers: NDArray[np.int64] = milliseconds.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        # An id that was given to XADD may have any number up to 2**64 - 1.
        numbers = np.array([min(int(text), 2**62) for text in milliseconds.to_pylist()], dtype=np.int64)
    return np.minimum(numbers, 2**62)
