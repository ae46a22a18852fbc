"""Envelopes around a whole column of payloads, byte for byte those of `Producer`."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring

import pyarrow as pa
import pyarrow.compute as pc

from conquiet.mq.envelope import Envelope

_ID, _KEY, _HEADERS = "\x00id", "\x00key", {"\x00header": ""}
_TIMESTAMP_MS = 1_234_567_890_123

_PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


class EnvelopeEncoder:
    """Makes the envelopes of one partition of a topic."""

    def __init__(self, topic: str, partition: int) -> None:
        # An envelope shows how it is written: what differs from row to row is cut out of it.
        example = Envelope(
            topic=topic,
            partition=partition,
            payload={},
            id=_ID,
            key=_KEY,
            headers=_HEADERS,
            timestamp_ms=_TIMESTAMP_MS,
        )
        headers = json.dumps(_HEADERS, separators=(",", ":"))
        text, self._parts = example.encode().decode(), []
        for part in (json.dumps(_ID), json.dumps(_KEY), headers, str(_TIMESTAMP_MS), "{}"):
            before, _, text = text.partition(part)
            self._parts.append(before)
        self._parts.append(text)

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
        before_id, before_key, before_headers, before_time, before_data, end = self._parts
        before_data = f"{before_time}{timestamp_ms}{before_data}"
        return pc.binary_join_element_wise(
            f'{before_id}"', ids, f'"{before_key}', keys, before_headers, headers, before_data, data, end, ""
        )


def new_ids(count: int) -> pa.StringArray:
    """Unique ids: random for each call, then counted, as `Envelope` does it."""
    numbers = _hexadecimals(-(-count // 1024) * 1024).slice(0, count)
    return pc.binary_join_element_wise(f"{secrets.token_hex(10)}-", numbers, "")


@lru_cache(maxsize=4)
def _hexadecimals(count: int) -> pa.StringArray:
    return pa.array([f"{number:x}" for number in range(count)], pa.string())


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


def _json_of(pairs: Sequence[tuple[str, str | None]] | None) -> str:
    headers = dict(pairs or ())
    for name, value in headers.items():
        if value is None:
            raise ValueError(f"headers must be strings, got {name!r}: None")
    return json.dumps(headers, ensure_ascii=False, separators=(",", ":"))
