"""Names of streams as asset keys: readable, and never two streams under one key."""

from __future__ import annotations

import dagster as dg

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def stream_asset_key(stream: str) -> dg.AssetKey:
    """The key of a stream: `orders:eu` is `streams/orders/eu`; different streams have different keys.

    Dagster allows letters, digits and `_`: any other character is written as its code, `{` as `_x7b_`.
    """
    if not isinstance(stream, str) or not stream:
        raise ValueError(f"stream must be a name, got {stream!r}")
    return dg.AssetKey(["streams", *(_escaped(part) for part in stream.split(":"))])


def plain_name(stream: str) -> str:
    """The same as one word, for the names of jobs, ops, sensors and pools."""
    return "__".join(stream_asset_key(stream).path[1:])


def _escaped(part: str) -> str:
    if not part:
        # "a::b" is not "a:b".
        return "_x_"
    return "".join(_escaped_at(part, place) for place in range(len(part)))


def _escaped_at(part: str, place: int) -> str:
    character = part[place]
    # An underscore before an x is written as its code too, so that "_x" always begins a code.
    looks_like_code = character == "_" and part[place + 1 : place + 2] == "x"
    if character in _PLAIN and not looks_like_code:
        return character
    return f"_x{ord(character):x}_"
