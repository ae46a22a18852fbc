"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from conquiet.queue.losses import Loss

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


def loss_finding(subject: str, loss: Loss) -> Finding:
    """What a failover has lost of a stream, as its record says."""
    try:
        seen_at = datetime.fromtimestamp(loss.seen_at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        seen_at = f"{loss.seen_at_ms} ms"
    which = "the" if loss.is_exact else "some of the"
    text = (
        f"{which} entries behind {loss.after} up to {loss.last} of stream {loss.stream} were lost, as in a "
        f"failover: at least {loss.count}, seen at {seen_at} by {loss.seen_by}"
    )
    to_do = (
        "Send them again; the logs of their producers name their ids. Then DEL the record, "
        f"{loss.mark}. min_replicas=1 prevents such losses."
    )
    return Finding("error", "loss", subject, text, to_do)
