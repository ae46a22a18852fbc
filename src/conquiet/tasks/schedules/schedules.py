"""Schedules: the schedules of an app, as code declares them and as they are kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import accumulate, islice
from typing import Protocol

from conquiet.queue.connection import Client
from conquiet.tasks import clock
from conquiet.tasks.codec import EnvelopeCodec
from conquiet.tasks.envelope import ENCRYPTION_KEY, TaskEnvelope
from conquiet.tasks.schedules.edits import edited
from conquiet.tasks.schedules.errors import ScheduleChangedError, UnknownScheduleError
from conquiet.tasks.schedules.redis_store import RedisScheduleStore
from conquiet.tasks.schedules.schedule import Schedule
from conquiet.tasks.schedules.store import BeatStats, PastOccurrence, ScheduleStore, StoredSchedule
from conquiet.tasks.schedules.timing import datetime_of

_log = logging.getLogger(__name__)

#: The name of the envelope in which a definition is kept, signed and encrypted as tasks are.
DEFINITION = "conquiet.schedule"
#: A beat may claim while a schedule is written; each time it is read and written again.
_MOST_TRIES = 20
_PAGE = 500


class ScheduledApp(Protocol):
    """What schedules need of an app."""

    @property
    def client(self) -> Client: ...
    @property
    def namespace(self) -> str: ...
    @property
    def codec(self) -> EnvelopeCodec: ...


@dataclass(frozen=True, slots=True)
class KeptSchedule:
    """A schedule as it is kept, with its state.

    Examples:
        >>> applied = app.schedules.apply(app.new_schedule("monthly", total, {"cents": []}, cron="0 0 1 * *"))
        >>> kept = app.schedules.get("monthly")
        >>> kept.name, kept.version, kept.next_at.day
        ('monthly', 1, 1)
    """

    schedule: Schedule
    stored: StoredSchedule

    @property
    def name(self) -> str:
        """Its name."""
        return self.stored.name

    @property
    def version(self) -> int:
        """For `apply` and `delete`: they change this version alone."""
        return self.stored.version

    @property
    def next_at(self) -> datetime | None:
        """When its next occurrence is planned, in UTC."""
        return None if self.stored.planned_ms is None else datetime_of(self.stored.planned_ms)


class Schedules:
    """The schedules of an app; `app.schedules` is one.

    Examples:
        >>> app.schedules.apply(app.new_schedule("weekly", total, {"cents": []}, cron="0 3 * * 1"))
        (1, True)
        >>> app.schedules.get("weekly").name
        'weekly'
    """

    def __init__(self, app: ScheduledApp) -> None:
        self._app = app
        #: Those of the code, by name: `Beat` applies them when it starts.
        self.declared: dict[str, Schedule] = {}

    @cached_property
    def store(self) -> ScheduleStore:
        """Where they are kept; set another one before a beat starts."""
        return RedisScheduleStore(self._app.client, self._app.namespace)

    def forget_store(self) -> None:
        """The app has closed its connections."""
        if isinstance(self.__dict__.get("store"), RedisScheduleStore):
            del self.__dict__["store"]

    def declare(self, schedule: Schedule) -> Schedule:
        """Have `Beat` apply it when it starts."""
        if self.declared.setdefault(schedule.name, schedule) != schedule:
            raise ValueError(f"two schedules are named {schedule.name!r}: give one of them another name")
        return schedule

    def apply(self, schedule: Schedule, *, version: int | None = None) -> tuple[int, bool]:
        """Write a schedule, new or changed; returns its version, and whether anything had to be written.

        If only its target changes, its next occurrence stays as it was planned. With another time those that
        have come and are not enqueued yet stay if they are occurrences still, and the next one is the first
        after now; never one that was enqueued before. One that was disabled stays so, unless `enabled` itself
        changes.

        Args:
            version: change this version alone, 0 for a new one; without, whatever is there.

        Raises:
            ScheduleChangedError: it is at another version.
        """
        # Refused here rather than when it is due.
        definition = self.encode(schedule)
        found = 0
        for _ in range(_MOST_TRIES):
            now_ms, seen = self.store.read(schedule.name)
            found = 0 if seen is None else seen.version
            if version is not None and found != version:
                break
            before = None
            with suppress(ValueError):
                before = None if seen is None else self.decode(seen)
            if seen is not None and before == schedule and self._has_active_keys(seen):
                return found, False
            changed = edited(schedule, definition, now_ms, seen, before)
            try:
                written = self.store.put(changed, seen)
            except ScheduleChangedError as error:
                found = error.version
                continue
            if changed.is_enabled and changed.planned_ms is None:
                _log.warning("schedule %s is over: it has no time from now on", schedule.name)
            return written, True
        raise ScheduleChangedError(
            schedule.name, expected=found if version is None else version, version=found
        )

    def get(self, name: str) -> KeptSchedule:
        """One schedule.

        Raises:
            UnknownScheduleError: there is none of this name.
            ValueError: its definition cannot be read: not signed with a known key, or of a later version.
        """
        _, stored = self.store.read(name)
        if stored is None:
            raise UnknownScheduleError(name)
        return KeptSchedule(self.decode(stored), stored)

    def stored(self) -> Iterator[StoredSchedule]:
        """All of them by name; `decode` gives their definitions."""
        names = self.store.names()
        while page := list(islice(names, _PAGE)):
            yield from self.store.read_many(page)

    def delete(self, name: str, *, version: int | None = None) -> None:
        """Delete a schedule; what it has enqueued stays.

        Raises:
            UnknownScheduleError: there is none of this name.
            ScheduleChangedError: it is at another version than the given.
        """
        if not self.store.delete(name, version):
            raise UnknownScheduleError(name)

    def enable(self, name: str, *, is_enabled: bool = True) -> int:
        """Have it go on, with its first occurrence after now; returns its version."""
        for tries_left in reversed(range(_MOST_TRIES)):
            now_ms, seen = self.store.read(name)
            if seen is None:
                raise UnknownScheduleError(name)
            if seen.is_enabled == is_enabled:
                return seen.version
            planned_ms = due_ms = None
            if is_enabled:
                schedule = self.decode(seen)
                planned_ms = schedule.next_after(max(now_ms, seen.last_planned_ms or 0))
                due_ms = None if planned_ms is None else schedule.due_ms(planned_ms)
            changed = replace(
                seen,
                is_enabled=is_enabled,
                planned_ms=planned_ms,
                due_ms=due_ms,
                carried_ms=(),
                carried_until_ms=None,
            )
            try:
                return self.store.put(changed, seen)
            except ScheduleChangedError:
                if not tries_left:
                    raise
        raise AssertionError("it was returned or raised")

    def disable(self, name: str) -> int:
        """Have it enqueue nothing until it is enabled; what it misses meanwhile is not caught up."""
        return self.enable(name, is_enabled=False)

    def history(self, name: str, limit: int = 100) -> list[PastOccurrence]:
        """The last occurrences that were claimed, up to 100, the newest first."""
        return self.store.history(name, limit)

    def stats(self) -> BeatStats:
        """How many there are, what is overdue, and which beat leads."""
        return self.store.stats()

    def encode(self, schedule: Schedule) -> bytes:
        """As it is kept: signed and encrypted if the app does so with its tasks.

        Raises:
            TaskTooLargeError: it is above the app's `max_bytes`.
        """
        envelope = TaskEnvelope(
            id=_definition_id(schedule.name),
            name=DEFINITION,
            args=schedule.document(),
            enqueued_at=clock.now(),
        )
        return self._app.codec.encode_definition(envelope, f"the definition of schedule {schedule.name!r}")

    def decode(self, stored: StoredSchedule) -> Schedule:
        """The schedule of a definition.

        Raises:
            ValueError: it is none, or of another schedule, or not signed with a known key.
        """
        envelope = self._app.codec.decode(stored.definition)
        if envelope.name != DEFINITION or envelope.id != _definition_id(stored.name):
            raise ValueError(f"schedule {stored.name!r}: its definition is of {envelope.name} {envelope.id}")
        schedule = Schedule.of_document(stored.name, envelope.args)
        if stored.carried_until_ms is None:
            return schedule
        return schedule.carrying(stored.carried_ms, stored.carried_until_ms)

    def _has_active_keys(self, stored: StoredSchedule) -> bool:
        """Not after a key was replaced: it is written again before the old one is removed."""
        signing, encryption = self._app.codec.signing, self._app.codec.encryption
        if signing is None and encryption is None:
            return True
        from conquiet.tasks.security import SIGNATURE_KEY

        headers = TaskEnvelope.decode(stored.definition).headers
        is_signed = signing is None or headers.get(SIGNATURE_KEY) == signing.active
        return is_signed and (encryption is None or headers.get(ENCRYPTION_KEY) == encryption.active)


def next_occurrences(schedule: Schedule, count: int, after_ms: int | None = None) -> list[tuple[int, int]]:
    """The next planned times, each with the time at which it is due, ms.

    Examples:
        >>> schedule = app.new_schedule("hourly", total, {"cents": []}, cron="0 * * * *")
        >>> len(next_occurrences(schedule, 3))
        3
    """
    moment = clock.now_ms() if after_ms is None else after_ms

    def planned() -> Iterator[int]:
        found = schedule.next_after(moment)
        while found is not None:
            yield found
            found = schedule.next_after(found)

    times = list(islice(planned(), count))
    # They come in this order, whatever their jitters are.
    return list(zip(times, accumulate(map(schedule.due_ms, times), max), strict=True))


def _definition_id(name: str) -> str:
    return f"schedule:{name}"
