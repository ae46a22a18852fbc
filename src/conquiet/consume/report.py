"""DrainReport: what a drain did, in a form small enough to hand between tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from conquiet.errors import DrainFailure, text_of
from conquiet.queue.message import entry_id_order

StopReason = Literal["max_messages", "max_duration", "max_failures", "idle", "stop", "error"]

#: The counts of a report; all but the first add up to it.
COUNTS = (
    *("read", "handled", "skipped", "failed", "retried"),
    *("dead_lettered", "handed_back", "claimed_by_others"),
)

#: Airflow keeps return values in its database, Dagster in its event log: the JSON form stays below this.
_MAX_JSON_BYTES = 4_096
_MAX_TEXT = 100
_MAX_PARTITIONS = 100
#: Failures of a topic's drain that its report names; of a plain stream's drain all are named.
MAX_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What is pending at other consumers of a group."""

    pending: int = 0
    #: How long the oldest of them has been idle.
    idle_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """What one drain did; see `COUNTS`.

    Examples:
        >>> report = drain(queue, bill, engine, DrainLimits(idle_ms=50))
        >>> report.failed, report.stopped_by
        (0, 'idle')
    """

    #: The key of the stream; of a partition, that of its own; of a whole topic, its name.
    stream: str
    group: str
    #: `None` for a plain stream.
    topic: str | None = None
    #: `None` for a plain stream, and for all partitions of a topic.
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
    #: Of a whole topic: the partitions that were not drained, since other consumers own them.
    busy: tuple[int, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The counts by name."""
        return {name: getattr(self, name) for name in COUNTS}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; names and error texts are cut so that the JSON form stays below 4 KB."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("stream", "group", "topic"):
            values[name] = values[name] and values[name][:_MAX_TEXT]
        values["seconds"] = round(self.seconds, 3)
        values["busy"] = list(self.busy[:_MAX_PARTITIONS])
        values["failures"] = [
            {"id": failure.id, "error": text_of(failure.error)[:_MAX_TEXT]} for failure in self.failures[:10]
        ]
        while values["failures"] and len(json.dumps(values)) >= _MAX_JSON_BYTES:
            values["failures"].pop()
        return values

    def to_json(self) -> str:
        """The JSON form, below 4 KB whatever failed."""
        return json.dumps(self.to_dict())


def sum_reports(whole: DrainReport, parts: Sequence[DrainReport]) -> DrainReport:
    """A report with the counts, ids and first failures of all parts."""
    first = [part.first_id for part in parts if part.first_id is not None]
    last = [part.last_id for part in parts if part.last_id is not None]
    failures = [failure for part in parts for failure in part.failures]
    counts = {name: sum(getattr(part, name) for part in parts) for name in COUNTS}
    return replace(
        whole,
        **counts,
        first_id=min(first, key=entry_id_order, default=None),
        last_id=max(last, key=entry_id_order, default=None),
        failures=tuple(failures[:MAX_FAILURES]),
    )
