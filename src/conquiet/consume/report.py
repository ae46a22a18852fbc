"""DrainReport: what a drain did, in a form small enough to hand between tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

from conquiet.errors import DrainFailure, text_of

StopReason = Literal["max_messages", "max_duration", "max_failures", "idle", "stop", "error"]

#: Airflow keeps return values in its database, Dagster in its event log: the JSON form stays below this.
_MAX_JSON_BYTES = 4_096
_MAX_TEXT = 100


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What is pending at other consumers of a group."""

    pending: int = 0
    #: How long the oldest of them has been idle.
    idle_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """Counts of one drain.

    read = handled + skipped + failed + retried + dead_lettered + handed_back + claimed_by_others
    """

    #: The key of the stream; of a topic, that of the partition's.
    stream: str
    group: str
    #: Of a partition; `None` for a plain stream.
    topic: str | None = None
    partition: int | None = None
    #: Messages and malformed entries that were delivered to this drain; its limits count messages alone.
    read: int = 0
    #: Handled and committed.
    handled: int = 0
    #: Acked without the handler: the inbox had them, or they were copies for another group.
    skipped: int = 0
    #: Plain streams: still pending after an error, or malformed.
    failed: int = 0
    #: Topics: failed, and scheduled for another attempt.
    retried: int = 0
    #: Moved to the dead letters.
    dead_lettered: int = 0
    #: Read and not begun: still pending, and free for the next drain or claim.
    handed_back: int = 0
    #: Read, but claimed by another consumer or trimmed before they were handled or settled.
    claimed_by_others: int = 0
    #: Plain streams: pending at other consumers when this drain ended, and how long the oldest has been idle.
    pending_elsewhere: int = 0
    elsewhere_idle_ms: int = 0
    first_id: str | None = None
    last_id: str | None = None
    seconds: float = 0.0
    stopped_by: StopReason = "idle"
    #: What failed, with its error; of a topic at most the first 100.
    failures: tuple[DrainFailure, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; names and error texts are cut so that the JSON form stays below 4 KB."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("stream", "group", "topic"):
            values[name] = values[name] and values[name][:_MAX_TEXT]
        values["seconds"] = round(self.seconds, 3)
        values["failures"] = [
            {"id": failure.id, "error": text_of(failure.error)[:_MAX_TEXT]} for failure in self.failures[:10]
        ]
        while values["failures"] and len(json.dumps(values)) >= _MAX_JSON_BYTES:
            values["failures"].pop()
        return values

    def to_json(self) -> str:
        """The JSON form, below 4 KB whatever failed."""
        return json.dumps(self.to_dict())
