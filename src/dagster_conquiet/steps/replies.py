"""Replies of redis-py, which differ by protocol and by the options in a URL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: One entry: its id, and the JSON object in its one field; `None` if it has no such field.
Entry = tuple[str, dict[str, Any] | None]


def entries(reply: Any) -> list[Entry]:
    """The entries of an XRANGE."""
    read: list[Entry] = []
    for entry_id, fields in reply:
        data = {_text(name): value for name, value in (fields or {}).items()}.get("data")
        read.append((_text(entry_id), None if data is None else json.loads(data)))
    return read


def entries_of_read(reply: Any) -> list[Entry]:
    """The entries of an XREAD of one stream."""
    if not reply:
        return []
    found = next(iter(reply.values())) if isinstance(reply, Mapping) else reply[0][1]
    # On RESP3 they are in one more list.
    is_nested = (
        bool(found) and isinstance(found[0], list) and bool(found[0]) and isinstance(found[0][0], tuple)
    )
    return entries(found[0] if is_nested else found)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
