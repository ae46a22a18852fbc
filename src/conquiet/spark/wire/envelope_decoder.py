"""What is inside the envelopes of a topic's messages, found for a whole column at once."""

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

_Numbers = NDArray[np.int64]


def _rest_length() -> int:
    encoded = Envelope(topic="", partition=0, payload={}, timestamp_ms=1_700_000_000_000).encode().decode()
    return encoded.index(_PAYLOAD) + len(_PAYLOAD) - encoded.index(_HEADERS) - len(_HEADERS) - 1


#: From the start of empty headers to that of the payload, with a time of 13 digits.
_REST_LENGTH = _rest_length()


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Three columns; where an entry is no message `data` is null and `problems` says why."""

    key: pa.StringArray
    headers: pa.MapArray
    data: pa.StringArray
    problems: dict[int, str]


def unwrap(entries: pa.StringArray) -> Unwrapped:
    """The key, headers and payload of each message; null entries stay null."""
    places = _places_without_headers(entries) or _places(entries)
    if places is None:
        return _unwrap_one_by_one(entries)
    _, ends = bounds_of(entries)
    keys = pieces(entries, places.key, places.key_end)
    headers = pieces(entries, places.headers, places.headers_end)
    data = pieces(entries, places.payload, ends - 1)
    return Unwrapped(_keys(keys), _headers(headers), data, {})


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the parts of each envelope are in the buffer of the column."""

    key: _Numbers
    key_end: _Numbers
    headers: _Numbers
    headers_end: _Numbers
    payload: _Numbers


def _places_without_headers(entries: pa.StringArray) -> _Places | None:
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
    return _Places(
        starts + key + len(_KEY), key_end, key_end + len(_HEADERS) - 1, key_end + len(_HEADERS) + 1, payload
    )


def _places(entries: pa.StringArray) -> _Places | None:
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
    return _Places(key + len(_KEY), key_end, key_end + len(_HEADERS) - 1, headers_end + 1, payload_start)


def _unwrap_one_by_one(entries: pa.StringArray) -> Unwrapped:
    keys: list[str | None] = []
    headers: list[list[tuple[str, str]] | None] = []
    data: list[str | None] = []
    problems = {}
    for index, text in enumerate(entries.to_pylist()):
        envelope = None
        if text is not None:
            try:
                envelope = _envelope(text)
            except ValueError as error:
                problems[index] = str(error)
        keys.append(None if envelope is None else envelope.key)
        headers.append(None if envelope is None else _pairs(envelope.headers))
        data.append(None if envelope is None else encode_payload(envelope.payload).decode())
    return Unwrapped(
        pa.array(keys, pa.string()), pa.array(headers, HEADERS), pa.array(data, pa.string()), problems
    )


def _envelope(text: str) -> Envelope:
    payload = decode_payload(text.encode())
    check_envelope(payload)
    return Envelope.of(payload, topic="", partition=0)


def _keys(texts: pa.StringArray) -> pa.StringArray:
    # Few keys and headers differ: each text is parsed once.
    encoded = texts.dictionary_encode()
    keys = [_key(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(keys, pa.string()).take(encoded.indices)


def _key(text: str) -> str | None:
    if "\\" in text or not text.startswith('"'):
        key: str | None = json.loads(text)
        return key
    return text[1:-1]


def _headers(texts: pa.StringArray) -> pa.MapArray:
    encoded = texts.dictionary_encode()
    headers = [_pairs(json.loads(text)) for text in encoded.dictionary.to_pylist()]
    return pa.array(headers, HEADERS).take(encoded.indices)


def _pairs(headers: Any) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in headers.items()]


def _all(flags: pa.BooleanArray) -> bool:
    result: bool = pc.all(flags, skip_nulls=False).as_py() is True
    return result
