"""Finding: what the doctor says of one thing, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

#: "ok": as it should be. "note": good to know. "warning": will cost something. "error": can lose messages, or
#: conquiet does not work.
Level = Literal["ok", "note", "warning", "error"]

_ORDER: tuple[Level, ...] = ("ok", "note", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of one check."""

    level: Level
    #: A stable name such as "eviction", for scripts.
    check: str
    #: The server's address, or `topic/group`.
    subject: str
    text: str
    #: `None` if there is nothing to do.
    to_do: str | None = None


def worst_level(findings: Iterable[Finding]) -> Level:
    """The worst level of all; "ok" of none."""
    return max((finding.level for finding in findings), key=_ORDER.index, default="ok")
