"""After a run that a person cancelled: whether a message has come since."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from dagster import DagsterRunStatus, RunRecord

from dagster_conquiet.steps.backlog import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a tick remembers of a stream or partition, in the sensor's cursor."""

    #: The state that was observed last.
    state: tuple[Any, ...] = ()
    #: How many messages waited that came without a new entry; after a cancelled run the fewest since then.
    returned: int = 0
    #: The last run, if it was cancelled.
    cancelled_run: str | None = None
    #: The newest entry when that was first seen; `None` once a message has come.
    newest_id: str | None = None

    @classmethod
    def of(cls, stored: Any) -> Self:
        """As it was stored; an earlier version stored the state alone."""
        if isinstance(stored, list):
            return cls(state=tuple(stored))
        known = stored if isinstance(stored, dict) else {}
        return cls(
            state=tuple(known.get("state") or ()),
            returned=int(known.get("returned") or 0),
            cancelled_run=known.get("cancelled_run"),
            newest_id=known.get("newest_id"),
        )

    def to_json(self) -> dict[str, Any]:
        """Without what is not there."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def waits_for_a_message(self) -> bool:
        """Whether the last run was cancelled, and no message has come since."""
        return self.newest_id is not None

    def with_last_run(self, last: RunRecord | None, waiting: Waiting) -> Memory:
        """What is known of the last run, and whether a message has come since it was cancelled."""
        if last is None or last.dagster_run.status != DagsterRunStatus.CANCELED:
            return replace(self, cancelled_run=None, newest_id=None)
        run_id, newest_id = last.dagster_run.run_id, waiting.backlog.last_id
        if self.cancelled_run == run_id:
            # By ids from here on, whatever the clocks say.
            has_come = newest_id != self.newest_id
        else:
            end_s = last.end_time if last.end_time is not None else last.update_timestamp.timestamp()
            ended_ms = end_s * 1000 + waiting.clock_ahead_ms
            has_come = int(newest_id.partition("-")[0]) > ended_ms
        has_come = has_come or waiting.returned > self.returned
        return replace(self, cancelled_run=run_id, newest_id=None if has_come else newest_id)

    def after_tick(self, state: tuple[Any, ...], waiting: Waiting) -> Memory:
        """What the next tick is given."""
        fewest = min(self.returned, waiting.returned) if self.waits_for_a_message else waiting.returned
        return replace(self, state=state, returned=fewest)
