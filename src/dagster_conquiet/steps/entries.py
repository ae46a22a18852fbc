"""Entries as redis-py gives them, which differ by protocol and by the options in a URL."""

from __future__ import annotations

import json
from typing import Any


def json_of_entries(entries: Any) -> list[tuple[str, dict[str, Any] | None]]:
    """The id of each entry, and the JSON object in its field `data`; `None` if it has no such field."""
    read = []
    for entry_id, fields in entries:
        data = {_text(name): value for name, value in (fields or {}).items()}.get("data")
        read.append((_text(entry_id), None if data is None else json.loads(data)))
    return read


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
