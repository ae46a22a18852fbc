"""Replies of XRANGE become columns, whatever the entries say."""

from __future__ import annotations

import hiredis
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from conquiet.payload import encode_payload
from conquiet.spark.wire import replies
from conquiet.spark.wire.replies import entries_of, milliseconds_of

#: Pieces of the protocol itself: a payload made of them looks like the end of an entry.
PIECES = st.lists(
    st.sampled_from([b"\r\n", b"$", b"*2\r\n", b"$4\r\ndata\r\n", b"$15\r\n", b"1-1", b"\n$", b"7", b"{}"])
).map(b"".join)
PAYLOADS = st.one_of(st.binary(max_size=300), PIECES, st.integers(0, 1_200).map(lambda length: b"x" * length))
IDS = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)).map(lambda pair: b"%d-%d" % pair)
OURS = PAYLOADS.map(lambda payload: [b"data", payload])
ANY_FIELDS = st.lists(PAYLOADS, min_size=1, max_size=3).map(
    lambda values: [b"a", *values, b"b"][: 2 * len(values)]
)


def bulk(part: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(part), part)


def reply_of(entries) -> np.ndarray:
    """As the server writes it."""
    parts = [b"*%d\r\n" % len(entries)]
    for entry_id, fields in entries:
        parts += [b"*2\r\n", bulk(entry_id), b"*%d\r\n" % len(fields), *map(bulk, fields)]
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def even(fields: list[bytes]) -> list[bytes]:
    """Names and values in turns."""
    return fields if len(fields) % 2 == 0 else [*fields, b"v"]


@settings(max_examples=300)
@example([(b"1-1", [b"data", b"x\r\n*2\r\n$3\r\n1-2\r\n*2\r\n$4\r\ndata\r\n$1\r\ny"])])
@example([(b"1-1", [b"data", b""]), (b"1-2", [b"data", b"\n$"])])
@given(st.lists(st.tuples(IDS, OURS | ANY_FIELDS.map(even)), max_size=20))
def test_every_entry_is_read_as_hiredis_reads_it(entries):
    reply = reply_of(entries)

    read = entries_of(reply)

    reader = hiredis.Reader()
    reader.feed(reply.tobytes())
    expected = reader.gets()
    assert read.ids.to_pylist() == [entry_id for entry_id, _ in expected]
    for index, (_, fields) in enumerate(expected):
        if len(fields) == 2 and fields[0] == b"data":
            assert read.data[index].as_py() == fields[1]
        else:
            assert read.data[index].as_py() is None
            assert list(read.others[index]) == fields


@settings(max_examples=100)
@given(st.lists(st.tuples(IDS, st.text(alphabet=st.characters(codec="utf-8"), max_size=1_200)), max_size=20))
def test_what_we_write_is_read_all_at_once(entries):
    ours = [(entry_id, [b"data", encode_payload({text: text})]) for entry_id, text in entries]

    read = replies.as_written_by_us(reply_of(ours))

    assert read is not None
    assert read.data.to_pylist() == [fields[1] for _, fields in ours]


@given(st.lists(IDS, max_size=20))
def test_the_milliseconds_are_those_of_the_id(ids):
    entries = entries_of(reply_of([(entry_id, [b"data", b"{}"]) for entry_id in ids]))

    milliseconds = milliseconds_of(entries.ids).tolist()

    assert milliseconds == [min(int(entry_id.split(b"-")[0]), 2**62) for entry_id in ids]


def test_an_error_of_the_server_is_raised():
    reply = np.frombuffer(b"-WRONGTYPE not a stream\r\n", dtype=np.uint8)

    with pytest.raises(ResponseError, match="WRONGTYPE not a stream"):
        entries_of(reply)
