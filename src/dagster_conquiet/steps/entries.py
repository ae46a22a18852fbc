"""Entries as redis-py gives them, which differ by protocol and by the options in a URL."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from conquiet.queue.connection import as_text

#: Large, and read already.
_DATA = (b"data", "data")


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


@dataclass(frozen=True, slots=True)
class PipesEntry:
    """One entry of the stream of a Pipes launch; `None` is what it does not have."""

    id: str
    message: dict[str, Any] | None
    writer: str | None
    number: int | None


def pipes_entries(entries: Any) -> list[PipesEntry]:
    """The entries with their Pipes messages, their writers, and their numbers there."""
    read = []
    for (entry_id, message), (_, fields) in zip(json_of_entries(entries), entries, strict=True):
        texts = {as_text(name): as_text(value) for name, value in (fields or {}).items() if name not in _DATA}
        number = texts.get("number", "")
        is_pipes = message is not None and isinstance(message.get("method"), str)
        read.append(
            PipesEntry(
                id=entry_id,
                message=message if is_pipes else None,
                writer=texts.get("writer"),
                number=int(number) if number.isdecimal() else None,
            )
        )
    return read
