"""What an edit makes of a schedule: which occurrences that have come it keeps, and which one is next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import NamedTuple

from conquiet.tasks.schedules.schedule import Schedule
from conquiet.tasks.schedules.store import StoredSchedule
from conquiet.tasks.schedules.timing import milliseconds_of

#: What says when a schedule is due.
_TIMES = ("cron", "every", "at", "calendar", "tz", "start", "end", "jitter_s")
#: Occurrences that have come and are looked at: all since the first, or since the earliest of these times
#: ago from which there are not more.
_MOST_CARRIED = 1_000
_SPANS_MS = tuple(
    minutes * 60_000 for minutes in (527_040, 46_080, 11_520, 2_880, 1_440, 720, 360, 180, 90, 45, 20, 10)
)


class _Next(NamedTuple):
    """The next occurrence; those that are carried begin with it."""

    planned_ms: int | None = None
    due_ms: int | None = None
    carried_ms: tuple[int, ...] = ()
    carried_until_ms: int | None = None


def edited(
    schedule: Schedule,
    definition: bytes,
    now_ms: int,
    seen: StoredSchedule | None,
    before: Schedule | None,
) -> StoredSchedule:
    """A schedule as it is written, new or changed.

    Args:
        seen: as it is kept; `None` if it is new.
        before: the definition of that; `None` if it cannot be read.
    """
    is_enabled = schedule.enabled
    # One that cannot be read, as after its key was removed, may have been disabled by hand.
    if seen is not None and (before is None or before.enabled == schedule.enabled):
        is_enabled = seen.is_enabled
    following = _next(schedule, now_ms, seen, before) if is_enabled else _Next()
    return StoredSchedule(
        name=schedule.name,
        definition=definition,
        version=0,
        is_enabled=is_enabled,
        **following._asdict(),
    )


def _next(schedule: Schedule, now_ms: int, seen: StoredSchedule | None, before: Schedule | None) -> _Next:
    is_readable = seen is not None and seen.is_enabled and before is not None
    # Without a planned time it has ended, or somebody has removed that: both are found out below.
    if is_readable and seen is not None and seen.planned_ms is not None and _has_same_times(before, schedule):
        # Not by its own jitter: it may wait for those before it.
        due_ms = seen.planned_due_ms
        due_ms = schedule.due_ms(seen.planned_ms) if due_ms is None else due_ms
        return _Next(seen.planned_ms, due_ms, seen.carried_ms, seen.carried_until_ms)
    if seen is not None and (carried := _carried(schedule, now_ms, seen, before)):
        carried, due_ms = _in_time(schedule, carried, now_ms, seen, before)
        # Which times a definition had that cannot be read is not known: all that the new one has.
        return _Next(carried[0], due_ms) if before is None else _Next(carried[0], due_ms, carried, now_ms)
    last_ms = None if seen is None else seen.last_planned_ms
    planned_ms = schedule.next_after(now_ms if last_ms is None else max(now_ms, last_ms))
    if planned_ms is None and (seen is None or is_readable):
        planned_ms = _recent_at(schedule, now_ms, last_ms)
    return _Next(planned_ms, None if planned_ms is None else schedule.due_ms(planned_ms))


def _has_same_times(before: Schedule | None, schedule: Schedule) -> bool:
    return all(getattr(before, name, None) == getattr(schedule, name) for name in _TIMES)


def _recent_at(schedule: Schedule, now_ms: int, last_ms: int | None) -> int | None:
    """A single time that is over, within its grace.

    Not a longer time ago: nobody has missed it, and it may be one that ran and was deleted since.
    """
    if schedule.at is None:
        return None
    at_ms = milliseconds_of(schedule.at)
    is_recent = now_ms - schedule.due_ms(at_ms) <= schedule.misfire_grace_s * 1000
    return at_ms if is_recent and (last_ms is None or at_ms > last_ms) else None


def _carried(
    schedule: Schedule, now_ms: int, seen: StoredSchedule, before: Schedule | None
) -> tuple[int, ...]:
    """Planned times that have come, are not enqueued, and are occurrences before the edit and after it."""
    if seen.planned_ms is None or seen.planned_ms > now_ms:
        return ()
    come = [seen.planned_ms] if before is None else _come(before, seen.planned_ms, now_ms)
    return _of(schedule, come)


def _of(schedule: Schedule, times: list[int]) -> tuple[int, ...]:
    """Those of the times, in order, that are planned times of a schedule."""
    both: list[int] = []
    found: int | None = None
    for one in times:
        if found is not None and found < one:
            # Most often the next one: a search that goes on costs a hundredth of a new one.
            found = schedule.next_after(found)
        if found is None or found < one:
            found = schedule.next_after(one - 1)
        if found is None:
            break
        if found == one:
            both.append(one)
    return tuple(both)


def _come(before: Schedule, planned_ms: int, now_ms: int) -> list[int]:
    come: list[int] = []
    for begin_ms in (planned_ms, *(max(planned_ms, now_ms - span) for span in _SPANS_MS)):
        come = list(islice(_between(before, begin_ms, now_ms), _MOST_CARRIED + 1))
        if len(come) <= _MOST_CARRIED:
            break
    return come


def _between(schedule: Schedule, first_ms: int, last_ms: int) -> Iterator[int]:
    found = schedule.next_after(first_ms - 1)
    while found is not None and found <= last_ms:
        yield found
        found = schedule.next_after(found)


def _in_time(
    schedule: Schedule, carried: tuple[int, ...], now_ms: int, seen: StoredSchedule, before: Schedule | None
) -> tuple[tuple[int, ...], int]:
    """Without those that are late, if others are not and `catch_up` wants only these; when the first is due.

    What waits for its jitter does not become late by the edit, and what is late stays late.
    """
    own = [(before or schedule).due_ms(one) for one in carried]
    if carried[0] == seen.planned_ms and seen.planned_due_ms is not None:
        own[0] = seen.planned_due_ms
    # As they were planned: none before the one that is planned earlier.
    due = list(accumulate(own, max))
    earliest_ms = now_ms - round(schedule.misfire_grace_s * 1000)
    late = 0 if schedule.catch_up == "all" or due[-1] < earliest_ms else bisect_left(due, earliest_ms)
    return carried[late:], max(min(due[late], now_ms), schedule.due_ms(carried[late]))
