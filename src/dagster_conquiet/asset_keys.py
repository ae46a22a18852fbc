"""Names of streams as asset keys: readable, and never two streams under one key."""

from __future__ import annotations

import re

import dagster as dg

# An underscore before an x is written as its code too, so that "_x" always begins a code.
_WRITTEN_AS_CODE = re.compile(r"[^A-Za-z0-9_]|_(?=x)")
# In one word parts are divided by "__": an underscore stays only between letters and digits.
_WRITTEN_AS_CODE_IN_A_WORD = re.compile(r"[^A-Za-z0-9_]|_(?![A-Za-wyz0-9])")


def stream_asset_key(stream: str) -> dg.AssetKey:
    """The key of a stream: `orders:eu` is `streams/orders/eu`; different streams have different keys.

    Dagster allows letters, digits and `_`: any other character is written as its code, `{` as `_x7b_`.

    Examples:
        >>> key = stream_asset_key("orders")
    """
    if not isinstance(stream, str) or not stream:
        raise ValueError(f"stream must be a name, got {stream!r}")
    return dg.AssetKey(["streams", *(_encoded(part, _WRITTEN_AS_CODE) for part in stream.split(":"))])


def plain_name(stream: str, *, is_one_part: bool = False) -> str:
    """A stream as one word, for names of jobs, ops, sensors and pools; no two streams have the same.

    Args:
        is_one_part: a colon divides nothing, as in the name of a group.
    """
    parts = [stream] if is_one_part else stream.split(":")
    return "__".join(_encoded(part, _WRITTEN_AS_CODE_IN_A_WORD) for part in parts)


def _encoded(part: str, written_as_code: re.Pattern[str]) -> str:
    # An empty part is "_x_": "a::b" is not "a:b".
    return written_as_code.sub(lambda found: f"_x{ord(found[0]):x}_", part) or "_x_"
