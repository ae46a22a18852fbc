"""Which occurrences of a schedule are enqueued now, which are skipped, and when the next one is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conquiet.tasks.schedules.schedule import Schedule

#: Occurrences that one claim enqueues: the server does nothing else meanwhile.
MOST_AT_ONCE = 100
#: After so many that are late, those before the last ones are neither looked at nor counted.
_MOST_COUNTED = 1_000
#: How far back the last occurrence is looked for.
_SPANS_MS = tuple(minutes * 60_000 for minutes in (1, 60, 1_440, 46_080, 527_040, 4_216_320))


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePlan:
    """What becomes of the occurrences of a schedule that are due."""

    #: Planned times of those that are enqueued, in order.
    enqueued: tuple[int, ...]
    #: How many are not enqueued; at least so many after a long outage.
    skipped: int
    #: `None`: it was the last one.
    next_planned_ms: int | None
    #: Never before those that are planned earlier.
    next_due_ms: int | None


def plan(
    schedule: Schedule,
    planned_ms: int,
    now_ms: int,
    due_ms: int | None = None,
    *,
    is_time_over: Callable[[], bool] = lambda: False,
) -> DuePlan:
    """What is to be done with the occurrence that was planned, and those since.

    Of what is late, `catch_up` decides; what has expired is never enqueued. They come in the order in which
    they are planned: one with a smaller jitter than those before it is due when these are, and not late then.

    Args:
        due_ms: when the first one is due, as the plan before said; without, by its own jitter.
        is_time_over: asked after each occurrence; then the plan ends, and the next one goes on behind it.
    """
    grace_ms, jitter_ms = round(schedule.misfire_grace_s * 1000), round(schedule.jitter_s * 1000)
    # Up to here all are late. Twice the jitter: from here on the due times of those before are known.
    all_late_until = now_ms - grace_ms - 2 * jitter_ms - 1
    is_late_enqueued = schedule.catch_up == "all"
    in_time: list[int] = []
    late = 0
    last_late: int | None = None
    found: int | None = planned_ms
    latest_due = schedule.due_ms(planned_ms) if due_ms is None else due_ms
    while found is not None and latest_due <= now_ms and len(in_time) < MOST_AT_ONCE:
        following = schedule.next_after(found)
        if is_late_enqueued or now_ms - latest_due <= grace_ms:
            in_time.append(found)
        elif late == _MOST_COUNTED and found < all_late_until:
            last_late = _last_until(schedule, found, all_late_until)
            following = schedule.next_after(last_late)
        else:
            late, last_late = late + 1, found
        found = following
        if found is not None:
            latest_due = max(latest_due, schedule.due_ms(found))
        if is_time_over():
            break
    is_last_known = found is None or latest_due > now_ms
    if is_last_known and not in_time and last_late is not None and schedule.catch_up == "last":
        in_time, late = [last_late], late - 1
    kept = in_time
    if schedule.expires_s is not None:
        expires_ms = round(schedule.expires_s * 1000)
        kept = [one for one in in_time if one + expires_ms > now_ms]
    return DuePlan(
        enqueued=tuple(kept),
        skipped=late + len(in_time) - len(kept),
        next_planned_ms=found,
        next_due_ms=None if found is None else latest_due,
    )


def _last_until(schedule: Schedule, known_ms: int, until_ms: int) -> int:
    """The last occurrence up to a time, without looking at all before it; `known_ms` is one of them."""
    for span_ms in _SPANS_MS:
        begin = max(known_ms, until_ms - span_ms)
        last, found = None, schedule.next_after(begin)
        while found is not None and found <= until_ms:
            last, found = found, schedule.next_after(found)
        if last is not None:
            return last
        if begin == known_ms:
            break
    return known_ms
