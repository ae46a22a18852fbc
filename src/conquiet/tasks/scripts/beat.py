"""The scripts of schedules and of the beat that claims them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from conquiet.queue.connection import Client, as_text, visible_errors
from conquiet.queue.lua import Argument, Call
from conquiet.tasks import clock
from conquiet.tasks.keys import BeatKeys, QueueKeys
from conquiet.tasks.scripts import script
from conquiet.tasks.scripts.enqueue import Enqueued, NewTask, enqueue_call


class Ticked(NamedTuple):
    """What beat_tick.lua returns."""

    now_ms: int
    #: 0: another beat leads.
    epoch: int
    leader: str
    due: Sequence[str]
    next_due_ms: int
    #: Id, then names and values in turn.
    items: Sequence[tuple[bytes, Sequence[bytes]]]
    since_ms: int


class Claimed(NamedTuple):
    """One occurrence as beat_claim.lua takes it."""

    planned_ms: int
    due_ms: int
    id: str
    #: The queue and the task that is enqueued in the same step, or names and values of an item of the outbox.
    task: tuple[QueueKeys, NewTask] | None
    item: Sequence[Argument] = ()


class OccurrenceNumber(NamedTuple):
    """By which an occurrence is known beside its queue."""

    sequence: int
    planned_ms: int
    #: Of the schedule.
    created_ms: int


class ClaimCall(NamedTuple):
    """The occurrences of one schedule."""

    name: str
    epoch: int
    version: int
    planned_ms: int
    created_ms: int | None
    next_planned_ms: int | None
    next_due_ms: int | None
    skipped: int
    occurrences: Sequence[Claimed]


def tick(
    client: Client, keys: BeatKeys, beat: str, epoch: int, *, lease_ms: int, most: int, after: str
) -> Ticked:
    """Take or renew the lease, and read what is due."""
    arguments = (clock.for_scripts(), beat, epoch or "", lease_ms, most, after)
    with visible_errors("tick", stream=keys.prefix, group=None):
        reply = script("beat_tick").run(client, [keys.meta, keys.due, keys.outbox], arguments)
    now_ms, found, leader, due, next_due, items, since = reply
    names = [as_text(name) for name in due]
    return Ticked(now_ms, found, as_text(leader), names, _milliseconds(next_due), items, _milliseconds(since))


def release(client: Client, keys: BeatKeys, epoch: int) -> bool:
    """End a lease."""
    with visible_errors("release", stream=keys.prefix, group=None):
        return bool(script("beat_release").run(client, [keys.meta], (epoch,)))


def put(
    client: Client,
    keys: BeatKeys,
    name: str,
    definition: bytes,
    *,
    seen: tuple[int, int | None, int | None],
    planned: tuple[int, int] | None,
    carried: tuple[Sequence[int], int | None],
    is_enabled: bool,
) -> tuple[bool, int]:
    """Write a schedule that is as seen: version, planned time, creation; returns whether, and its version."""
    version, planned_before, created = seen
    next_planned, due = planned or ("", 0)
    times, until = carried
    arguments: list[Argument] = [clock.for_scripts(), name, version, _or_empty(planned_before), definition]
    arguments += [next_planned, due, int(is_enabled), " ".join(map(str, times)), _or_empty(until)]
    arguments.append(_or_empty(created))
    with visible_errors("write schedule", stream=keys.schedule(name), group=None):
        reply = script("beat_put").run(client, [keys.names, keys.due, keys.schedule(name)], arguments)
    return bool(reply[0]), int(reply[1])


def read_all(
    client: Client, keys: BeatKeys, names: Sequence[str]
) -> list[tuple[int, int | None, dict[str, bytes]] | Exception]:
    """Of each schedule: the time, when it is due, and its fields; or the error of one that is refused."""
    calls: list[Call] = [([keys.schedule(name), keys.due], (clock.for_scripts(), name)) for name in names]
    found: list[tuple[int, int | None, dict[str, bytes]] | Exception] = []
    with visible_errors("read schedules", stream=keys.prefix, group=None):
        for reply in script("beat_read").run_all(client, calls):
            if isinstance(reply, ResponseError):
                found.append(reply)
                continue
            if isinstance(reply, Exception):
                raise reply
            now_ms, due, fields = reply
            values = {as_text(name): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
            found.append((now_ms, _milliseconds(due) if due else None, values))
    return found


def delete(client: Client, keys: BeatKeys, name: str, version: int | None) -> tuple[bool, int]:
    """Delete a schedule of this version; returns whether, and its version."""
    used = [keys.names, keys.due, keys.schedule(name), keys.history(name)]
    with visible_errors("delete schedule", stream=keys.schedule(name), group=None):
        reply = script("beat_delete").run(client, used, (name, "" if version is None else version))
    return bool(reply[0]), int(reply[1])


def postpone(
    client: Client, keys: BeatKeys, name: str, epoch: int, version: int, *, delay_ms: int | None, error: str
) -> bool:
    """Have a schedule due again later, with an error, or only note that; version 0: it is not there."""
    used = [keys.meta, keys.due, keys.schedule(name)]
    arguments = (clock.for_scripts(), name, epoch, version or "", "" if delay_ms is None else delay_ms, error)
    with visible_errors("postpone schedule", stream=keys.schedule(name), group=None):
        return bool(script("beat_postpone").run(client, used, arguments))


def claim_all(client: Client, keys: BeatKeys, calls: Sequence[ClaimCall]) -> list[Any]:
    """Claim for each schedule, in one round trip; 1, 0 or an error for each."""
    with visible_errors("claim", stream=keys.prefix, group=None):
        return script("beat_claim").run_all(client, [_claim_call(keys, call) for call in calls])


def _claim_call(keys: BeatKeys, call: ClaimCall) -> Call:
    used = [keys.meta, keys.due, keys.schedule(call.name), keys.history(call.name), keys.outbox]
    arguments: list[Argument] = [clock.for_scripts(), call.name, call.epoch, call.version, call.planned_ms]
    arguments += [_or_empty(call.created_ms), _or_empty(call.next_planned_ms), call.next_due_ms or 0]
    arguments += [call.skipped, len(call.occurrences)]
    for one in call.occurrences:
        values: Sequence[Argument] = one.item
        if one.task is not None:
            more, values = enqueue_call(*one.task)
            used += more
        arguments += [one.planned_ms, one.due_ms, one.id, len(values), *values]
    return used, arguments


def enqueue_scheduled(
    client: Client, keys: QueueKeys, schedule: str, task: NewTask, *, number: OccurrenceNumber, keep_ms: int
) -> Enqueued:
    """Enqueue the task of a claimed occurrence, unless this or a later one of its schedule was."""
    used, arguments = enqueue_call(keys, task)
    with visible_errors("enqueue", stream=keys.prefix, group=None):
        task_id, is_new, _ = script("enqueue_scheduled").run(
            client, [*used, keys.scheduled(schedule)], [*arguments, *number, keep_ms]
        )
    return Enqueued(as_text(task_id), bool(is_new))


def stats(client: Client, keys: BeatKeys, overdue_ms: int) -> list[Any]:
    """What beat_stats.lua returns."""
    used = [keys.meta, keys.names, keys.due, keys.outbox]
    with visible_errors("count schedules", stream=keys.prefix, group=None):
        reply: list[Any] = script("beat_stats").run(client, used, (clock.for_scripts(), overdue_ms))
    return reply


def _or_empty(number: int | None) -> Argument:
    return "" if number is None else number


def _milliseconds(score: bytes | str) -> int:
    """Of a time that somebody may have written by hand: it may be infinite, or no number."""
    try:
        return round(min(max(float(score), -1.0), 1e15))
    except ValueError:
        return 0
