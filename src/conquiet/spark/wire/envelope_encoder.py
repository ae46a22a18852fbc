"""Envelopes around a whole column of payloads, byte for byte those of `Producer`."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conquiet.mq.envelope import Envelope

_ID, _KEY, _HEADER = "\x00id", "\x00key", "\x00header"
_TIMESTAMP_MS = 1_234_567_890_123

_EMPTY = pa.scalar("", pa.string())


class EnvelopeEncoder:
    """Makes the envelopes of one partition of a topic."""

    def __init__(self, topic: str, partition: int) -> None:
        encoded = Envelope(
            topic=topic,
            partition=partition,
            payload={},
            id=_ID,
            key=_KEY,
            headers={_HEADER: ""},
            timestamp_ms=_TIMESTAMP_MS,
        ).encode()
        # The envelope itself says how it is written: only what differs from row to row is cut out of it.
        parts = [json.dumps(_ID), json.dumps(_KEY), json.dumps({_HEADER: ""}, separators=(",", ":"))]
        rest, pieces = encoded.decode(), []
        for part in (*parts, str(_TIMESTAMP_MS), "{}"):
            piece, _, rest = rest.partition(part)
            pieces.append(piece)
        self._before_id, self._before_key, self._before_headers, self._before_time, self._before_data = pieces
        self._end = rest

    def encode(
        self,
        data: pa.StringArray,
        keys: pa.StringArray,
        headers: pa.StringArray,
        *,
        ids: pa.StringArray | None = None,
        timestamp_ms: int | None = None,
    ) -> pa.StringArray:
        """One envelope for each row; keys and headers are JSON already."""
        if ids is None:
            ids = new_ids(len(data))
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        return pc.binary_join_element_wise(
            pa.scalar(self._before_id + '"'),
            ids,
            pa.scalar('"' + self._before_key),
            keys,
            pa.scalar(self._before_headers),
            headers,
            pa.scalar(f"{self._before_time}{timestamp_ms}{self._before_data}"),
            data,
            pa.scalar(self._end),
            _EMPTY,
        )


def new_ids(count: int) -> pa.StringArray:
    """Unique names: random for each call, then counted, as `Envelope` does it."""
    return pc.binary_join_element_wise(
        pa.scalar(f"{secrets.token_hex(10)}-"), _numbers(-(-count // 1024) * 1024).slice(0, count), _EMPTY
    )


def json_keys(keys: pa.StringArray) -> pa.StringArray:
    """Each key as JSON; a null is `null`."""
    encoded = keys.dictionary_encode()
    texts = [encode_basestring(key) for key in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices).fill_null("null")


def json_headers(headers: pa.Array | None, count: int) -> pa.StringArray:
    """Each map as JSON; a null is an empty one."""
    if headers is None or headers.null_count == count or not len(pc.list_flatten(headers.cast(_PAIRS))):
        return pa.repeat(pa.scalar("{}"), count)
    return pa.array([_json_of(pairs) for pairs in headers.to_pylist()], pa.string())


def with_headers(headers: pa.StringArray, more: Mapping[str, str]) -> pa.StringArray:
    """Headers as JSON, with more of them."""
    if not more:
        return headers
    encoded = headers.dictionary_encode()
    texts = [_json_of([*json.loads(text).items(), *more.items()]) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


_PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


def _json_of(pairs: Sequence[tuple[str, str | None]] | None) -> str:
    headers = dict(pairs or ())
    for name, value in headers.items():
        if value is None:
            raise ValueError(f"headers must be strings, got {name!r}: None")
    return json.dumps(headers, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=4)
def _numbers(count: int) -> pa.StringArray:
    return pa.array([f"{number:x}" for number in np.arange(count).tolist()], pa.string())
