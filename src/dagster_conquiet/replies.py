"""What redis-py hands over, which differs by protocol and by the options in a URL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: One entry: its id, and the JSON object in its one field; `None` if it has no such field.
Entry = tuple[str, dict[str, Any] | None]


def text(value: Any) -> str:
    """A reply as text, whether or not the client was told to decode."""
    return value.decode() if isinstance(value, bytes) else str(value)


def entries(reply: Any) -> list[Entry]:
    """The entries of an XRANGE."""
    return [(text(entry_id), _payload(fields)) for entry_id, fields in reply]


def entries_of_read(reply: Any) -> list[Entry]:
    """The entries of an XREAD of one stream."""
    if not reply:
        return []
    found = next(iter(reply.values())) if isinstance(reply, Mapping) else reply[0][1]
    # On RESP3 they are wrapped once more.
    is_wrapped = (
        bool(found) and isinstance(found[0], list) and bool(found[0]) and isinstance(found[0][0], tuple)
    )
    return entries(found[0] if is_wrapped else found)


def _payload(fields: Any) -> dict[str, Any] | None:
    data = {text(name): value for name, value in (fields or {}).items()}.get("data")
    return None if data is None else json.loads(data)
