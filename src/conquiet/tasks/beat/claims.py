"""Claims: what a beat that leads claims of the schedules that are due."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from conquiet.errors import text_of
from conquiet.tasks.app import TaskApp
from conquiet.tasks.beat import metrics
from conquiet.tasks.beat.config import BeatConfig
from conquiet.tasks.beat.deliveries import Deliveries, destination_of, occurrence_of
from conquiet.tasks.beat.queue_registry import QueueRegistry
from conquiet.tasks.schedules.occurrences import plan
from conquiet.tasks.schedules.schedule import Schedule
from conquiet.tasks.schedules.store import Claim, ScheduleStore, StoredSchedule, Tick

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What became of the schedules that were due."""

    #: Occurrences.
    count: int
    skipped: int
    #: Schedules that are tried again later.
    errors: int
    #: The time was over before all were planned.
    has_more: bool


class Claims:
    """Claims due occurrences; lives as long as its beat."""

    def __init__(
        self,
        app: TaskApp,
        store: ScheduleStore,
        deliveries: Deliveries,
        queues: QueueRegistry,
        config: BeatConfig,
    ) -> None:
        self._app = app
        self._store = store
        self._deliveries = deliveries
        self._queues = queues
        self._config = config
        # The beat renews its lease with each tick: planning longer than it lasts would never claim anything.
        self._longest_s = config.lease_ttl_s / 3
        self._over_at = 0.0
        #: Schedules that were not planned to the end, which is left to the next ticks.
        self._unfinished: set[str] = set()

    def claim_due(self, tick: Tick) -> Claimed:
        """Claim them, each schedule with what is due of it; some of it if all takes too long to plan."""
        self._over_at = monotonic() + self._longest_s
        self._unfinished &= set(tick.due)
        found = self._store.read_many(tick.due)
        for name in set(tick.due) - {stored.name for stored in found}:
            # Somebody has deleted its key by hand.
            gone = StoredSchedule(name=name, definition=b"", version=0, is_enabled=False)
            self._store.postpone(gone, tick.epoch, 0, "it has no definition")
        prepared: list[Claim | Literal["postponed", "not due"]] = []
        # Last: those that take long must not keep the others from being claimed.
        for stored in sorted(found, key=lambda stored: stored.name in self._unfinished):
            prepared.append(self._prepare(stored, tick))
            if self._is_time_over():
                break
        claims = [one for one in prepared if isinstance(one, Claim)]
        errors = prepared.count("postponed")
        claimed = skipped = 0
        by_name = {stored.name: stored for stored in found}
        self._queues.note(one.delivery for claim in claims for one in claim.occurrences)
        if self._queues.is_beside_schedules:
            # A crash behind the claim would leave a task in a queue that is not listed.
            self._queues.write()
        for claim, reply in zip(claims, self._store.claim(claims), strict=True):
            stored = by_name[claim.name]
            if isinstance(reply, Exception):
                self._postpone(stored, tick, "claim", text_of(reply))
                errors += 1
            elif reply:
                if error := self._deliveries.error_of(stored.name):
                    # Of those before, which the claim has removed.
                    self._store.postpone(stored, tick.epoch, None, error)
                drifts = [max(0, tick.now_ms - one.due_ms) / 1000 for one in claim.occurrences]
                metrics.count_claimed(self._app.namespace, drifts, claim.skipped)
                claimed, skipped = claimed + len(drifts), skipped + claim.skipped
        return Claimed(count=claimed, skipped=skipped, errors=errors, has_more=len(prepared) < len(found))

    def _prepare(self, stored: StoredSchedule, tick: Tick) -> Claim | Literal["postponed", "not due"]:
        if not stored.version:
            return self._postpone(stored, tick, "read", stored.error or "it cannot be read")
        if stored.planned_ms is None and stored.due_ms is not None:
            # By hand: it would be due in each tick, in the place of others.
            return self._postpone(stored, tick, "read", "it has no planned time: disable and enable it")
        # Claimed or changed since the tick.
        if stored.planned_ms is None or stored.due_ms is None or stored.due_ms > tick.now_ms:
            return "not due"
        try:
            schedule = self._app.schedules.decode(stored)
            waiting = self._deliveries.undelivered(stored.name, destination_of(self._app, schedule))
            if waiting < self._config.max_undelivered:
                return self._claim_of(schedule, stored, stored.planned_ms, tick)
        except Exception as error:  # noqa: BLE001 -- of one schedule: a definition of others, a time zone
            return self._postpone(stored, tick, "read", text_of(error))
        reason = self._deliveries.error_of(stored.name) or "occurrences are not delivered yet"
        return self._postpone(stored, tick, "claim", reason)

    def _claim_of(self, schedule: Schedule, stored: StoredSchedule, planned_ms: int, tick: Tick) -> Claim:
        planned = plan(
            schedule, planned_ms, tick.now_ms, stored.planned_due_ms, is_time_over=self._is_time_over
        )
        self._unfinished.discard(stored.name)
        if planned.next_due_ms is not None and planned.next_due_ms <= tick.now_ms and self._is_time_over():
            self._unfinished.add(stored.name)
        return Claim(
            name=stored.name,
            epoch=tick.epoch,
            version=stored.version,
            planned_ms=planned_ms,
            created_at_ms=stored.created_at_ms,
            occurrences=[occurrence_of(self._app, schedule, one) for one in planned.enqueued],
            skipped=planned.skipped,
            next_planned_ms=planned.next_planned_ms,
            next_due_ms=planned.next_due_ms,
        )

    def _is_time_over(self) -> bool:
        return monotonic() > self._over_at

    def _postpone(self, stored: StoredSchedule, tick: Tick, step: str, text: str) -> Literal["postponed"]:
        metrics.count_error(self._app.namespace, step)
        _log.warning("a step of schedule %s (%s) has failed, and is tried again: %s", stored.name, step, text)
        self._store.postpone(stored, tick.epoch, round(self._config.retry_s * 1000), text)
        return "postponed"
