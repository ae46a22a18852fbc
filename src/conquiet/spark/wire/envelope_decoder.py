"""Key, headers and payload of a topic's messages, found for a whole column of envelopes at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conquiet.mq.envelope import Envelope, check_envelope
from conquiet.payload import decode_payload, encode_payload
from conquiet.spark.columns import HEADERS
from conquiet.spark.wire.texts import bounds_of, pieces

# In JSON a quote inside a string is written with a backslash: these texts can only be the envelope's own.
_START = '{"schemaVersion":1,"id":"'
_KEY = ',"key":'
_HEADERS = ',"headers":{'
_TIMESTAMP = '},"timestamp":'
_PAYLOAD = ',"forGroup":null,"payload":{'

#: From the start of empty headers to that of the payload, with a time of 13 digits.
_EMPTY = Envelope(topic="", partition=0, payload={}, timestamp_ms=1_700_000_000_000).encode().decode()
_REST_LENGTH = _EMPTY.index(_PAYLOAD) + len(_PAYLOAD) - _EMPTY.index(_HEADERS) - len(_HEADERS) - 1


@dataclass(frozen=True, slots=True)
class DecodedEnvelopes:
    """Three columns; where an entry is malformed `data` is null, and `problems` says why by index."""

    key: pa.StringArray
    headers: pa.MapArray
    data: pa.StringArray
    problems: dict[int, str]


def decode_envelopes(entries: pa.StringArray) -> DecodedEnvelopes:
    """The key, headers and payload of each message; null entries stay null."""
    bounds = bounds_without_headers(entries) or bounds_with_headers(entries)
    if bounds is None:
        return _decode_one_by_one(entries)
    # Few keys and headers differ: each text is parsed once.
    keys = pieces(entries, bounds.key, bounds.key_end).dictionary_encode()
    key_values = [
        text[1:-1] if text.startswith('"') and "\\" not in text else json.loads(text)
        for text in keys.dictionary.to_pylist()
    ]
    headers = pieces(entries, bounds.headers, bounds.headers_end).dictionary_encode()
    header_values = [_pairs(json.loads(text)) for text in headers.dictionary.to_pylist()]
    return DecodedEnvelopes(
        pa.array(key_values, pa.string()).take(keys.indices),
        pa.array(header_values, HEADERS).take(headers.indices),
        pieces(entries, bounds.payload, bounds_of(entries)[1] - 1),
        {},
    )


@dataclass(frozen=True, slots=True)
class PartBounds:
    """Where the parts of each envelope are in the buffer of the column."""

    key: NDArray[np.int64]
    key_end: NDArray[np.int64]
    headers: NDArray[np.int64]
    headers_end: NDArray[np.int64]
    payload: NDArray[np.int64]


def bounds_without_headers(entries: pa.StringArray) -> PartBounds | None:
    """Of messages that were sent once and have no headers: all that follows the key is equally long."""
    if not len(entries) or entries.null_count or not _all(pc.starts_with(entries, _START)):
        return None
    starts, ends = bounds_of(entries)
    key, headers = (pc.find_substring(entries, text).to_numpy() for text in (_KEY, _HEADERS))
    payload = starts + headers + len(_HEADERS) + _REST_LENGTH
    if (key < 0).any() or (headers < 0).any() or (payload + 2 > ends).any():
        return None
    buffer = np.frombuffer(entries.buffers()[2], dtype=np.uint8)
    wanted = np.frombuffer(_PAYLOAD.encode(), dtype=np.uint8)
    found = buffer[(payload - len(_PAYLOAD) + 1)[:, None] + np.arange(len(wanted))]
    is_usual = (found == wanted).all() and (buffer[starts + headers + len(_HEADERS)] == ord("}")).all()
    if not is_usual or not _all(pc.ends_with(entries, "}}")):
        return None
    key_end = starts + headers
    headers_end = key_end + len(_HEADERS) + 1
    return PartBounds(starts + key + len(_KEY), key_end, headers_end - 2, headers_end, payload)


def bounds_with_headers(entries: pa.StringArray) -> PartBounds | None:
    """Of all messages that are written as we write them."""
    payload = pc.find_substring(entries, _PAYLOAD)
    is_usual = pc.and_(pc.starts_with(entries, _START), pc.greater(payload, 0))
    if not len(entries) or not _all(pc.and_(is_usual, pc.ends_with(entries, "}}"))):
        return None
    starts, _ = bounds_of(entries)
    payload_start = starts + payload.to_numpy() + len(_PAYLOAD) - 1
    heads = pieces(entries, starts, payload_start)
    key, key_end, headers_end = (
        starts + pc.find_substring(heads, text).to_numpy() for text in (_KEY, _HEADERS, _TIMESTAMP)
    )
    return PartBounds(key + len(_KEY), key_end, key_end + len(_HEADERS) - 1, headers_end + 1, payload_start)


def _decode_one_by_one(entries: pa.StringArray) -> DecodedEnvelopes:
    envelopes: list[Envelope | None] = []
    problems = {}
    for index, text in enumerate(entries.to_pylist()):
        envelope = None
        if text is not None:
            try:
                payload = decode_payload(text.encode())
                check_envelope(payload)
                envelope = Envelope.of(payload, topic="", partition=0)
            except ValueError as error:
                problems[index] = str(error)
        envelopes.append(envelope)
    keys = [None if one is None else one.key for one in envelopes]
    headers = [None if one is None else _pairs(one.headers) for one in envelopes]
    data = [None if one is None else encode_payload(one.payload).decode() for one in envelopes]
    return DecodedEnvelopes(
        pa.array(keys, pa.string()), pa.array(headers, HEADERS), pa.array(data, pa.string()), problems
    )


def _pairs(headers: Any) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in headers.items()]


def _all(flags: pa.BooleanArray) -> bool:
    result: bool = pc.all(flags, skip_nulls=False).as_py() is True
    return result
