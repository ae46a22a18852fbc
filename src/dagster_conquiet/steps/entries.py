"""Entries as redis-py gives them, which differ by protocol and by the options in a URL."""

from __future__ import annotations

import json
from typing import Any

from conquiet.queue.connection import as_text


def json_of_entries(entries: Any) -> list[tuple[str, dict[str, Any] | None]]:
    """The id of each entry, and the JSON object in its field `data`; `None` if it has none."""
    read: list[tuple[str, dict[str, Any] | None]] = []
    for entry_id, fields in entries:
        data = {as_text(name): value for name, value in (fields or {}).items()}.get("data", b"")
        try:
            # Not by `decode_payload`: the metadata of a Pipes message may be NaN.
            payload = json.loads(data)
        except ValueError:
            payload = None
        read.append((as_text(entry_id), payload if isinstance(payload, dict) else None))
    return read
