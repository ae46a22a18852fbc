"""Names of streams as asset keys: readable, and never two streams under one key."""

from __future__ import annotations

import re

import dagster as dg

# An underscore before an x is written as its code too, so that "_x" always begins a code.
_WRITTEN_AS_CODE = re.compile(r"[^A-Za-z0-9_]|_(?=x)")


def stream_asset_key(stream: str) -> dg.AssetKey:
    """The key of a stream: `orders:eu` is `streams/orders/eu`; different streams have different keys.

    Dagster allows letters, digits and `_`: any other character is written as its code, `{` as `_x7b_`.

    Examples:
        >>> key = stream_asset_key("orders")
    """
    if not isinstance(stream, str) or not stream:
        raise ValueError(f"stream must be a name, got {stream!r}")
    # An empty part is "_x_": "a::b" is not "a:b".
    parts = [
        _WRITTEN_AS_CODE.sub(lambda found: f"_x{ord(found[0]):x}_", part) or "_x_"
        for part in stream.split(":")
    ]
    return dg.AssetKey(["streams", *parts])


def plain_name(stream: str) -> str:
    """The same as one word, for the names of jobs, ops, sensors and pools."""
    return "__".join(stream_asset_key(stream).path[1:])
