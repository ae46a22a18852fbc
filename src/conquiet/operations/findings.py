"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: "ok": as it should be. "note": good to know. "warning": will cost something. "error": can lose messages, or
#: conquiet does not work.
Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of one check."""

    level: Level
    #: A stable name such as "eviction", for scripts.
    check: str
    #: The server's address, `topic/group`, or `queue name`.
    subject: str
    text: str
    #: `None` if there is nothing to do.
    to_do: str | None = None
