"""RedisScheduleStore: schedules in one slot of Redis, due times in a sorted set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from redis.cluster import RedisCluster

from conquiet.errors import QueueError, text_of
from conquiet.queue.connection import Client, as_text, queue_error, run_command
from conquiet.queue.message import pairs_of
from conquiet.tasks.keys import BeatKeys, QueueKeys
from conquiet.tasks.schedules.errors import ScheduleChangedError
from conquiet.tasks.schedules.outbox import item_of, pending_of
from conquiet.tasks.schedules.store import (
    BeatStats,
    Claim,
    Occurrence,
    PastOccurrence,
    PendingOccurrence,
    StoredSchedule,
    TaskDelivery,
    Tick,
)
from conquiet.tasks.scripts import beat as scripts

#: For so long after the last occurrence a queue on a cluster remembers which one it was.
_MARK_MS = 30 * 86_400_000
_OVERDUE_MS = 60_000
#: Of a number that a script reads as we do.
_MOST_DIGITS = 15
_PAGE = 1_000
#: Each has an envelope.
_PENDING_PAGE = 100

#: What the history has of each occurrence.
_PAST_ON_THE_WIRE = {
    "planned_ms": "planned",
    "at_ms": "at",
    "drift_ms": "drift",
    "id": "id",
    "is_new": "isNew",
}


class RedisScheduleStore:
    """A `ScheduleStore` in Redis; see there.

    On a single server the task of an occurrence is enqueued by the script that claims it. On a cluster its
    queue is in another slot: the script keeps it in the outbox, and `deliver_task` enqueues it once, by a
    mark beside the queue.

    Examples:
        >>> store = RedisScheduleStore(app.client, "no-schedules")
        >>> list(store.names())
        []
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._keys = BeatKeys(namespace)
        self._is_cluster = isinstance(client, RedisCluster)

    def put(self, changed: StoredSchedule, seen: StoredSchedule | None) -> int:
        """As `ScheduleStore.put`."""
        version = 0 if seen is None else seen.version
        planned = None
        if changed.planned_ms is not None:
            due_ms = changed.planned_ms if changed.due_ms is None else changed.due_ms
            planned = (changed.planned_ms, due_ms)
        is_written, found = scripts.put(
            self._client,
            self._keys,
            changed.name,
            changed.definition,
            seen=(0, None, None) if seen is None else (version, seen.planned_ms, seen.created_at_ms),
            planned=planned,
            carried=(changed.carried_ms, changed.carried_until_ms),
            is_enabled=changed.is_enabled,
        )
        if not is_written:
            raise ScheduleChangedError(changed.name, expected=version, version=found)
        return found

    def read(self, name: str) -> tuple[int, StoredSchedule | None]:
        """As `ScheduleStore.read`."""
        [reply] = scripts.read_all(self._client, self._keys, [name])
        if isinstance(reply, Exception):
            raise self._unreadable(name, reply) from reply
        now_ms, due_ms, fields = reply
        return now_ms, _stored(name, due_ms, fields)

    def read_many(self, names: Sequence[str]) -> list[StoredSchedule]:
        """As `ScheduleStore.read_many`."""
        rows = scripts.read_all(self._client, self._keys, names) if names else []
        found: list[StoredSchedule] = []
        for name, row in zip(names, rows, strict=True):
            if isinstance(row, Exception):
                text = text_of(self._unreadable(name, row))
                one = StoredSchedule(name=name, definition=b"", version=0, is_enabled=True, error=text)
                found.append(one)
            elif (stored := _stored(name, *row[1:])) is not None:
                found.append(stored)
        return found

    def names(self) -> Iterator[str]:
        """As `ScheduleStore.names`."""
        after = "-"
        while True:
            page = self._run("ZRANGEBYLEX", self._keys.names, after, "+", "LIMIT", 0, _PAGE)
            yield from map(as_text, page)
            if len(page) < _PAGE:
                return
            after = f"({as_text(page[-1])}"

    def delete(self, name: str, version: int | None) -> bool:
        """As `ScheduleStore.delete`."""
        is_deleted, found = scripts.delete(self._client, self._keys, name, version)
        if found and not is_deleted:
            raise ScheduleChangedError(name, expected=version or 0, version=found)
        return is_deleted

    def tick(self, beat: str, epoch: int, *, lease_ms: int, most: int, after: str = "") -> Tick:
        """As `ScheduleStore.tick`."""
        ticked = scripts.tick(
            self._client, self._keys, beat, epoch, lease_ms=lease_ms, most=most, after=after
        )
        return Tick(
            now_ms=ticked.now_ms,
            epoch=ticked.epoch,
            leader=ticked.leader,
            due=tuple(ticked.due),
            next_due_ms=None if ticked.next_due_ms < 0 else ticked.next_due_ms,
            pending=tuple(pending_of(item_id, fields) for item_id, fields in ticked.items),
            since_ms=ticked.since_ms,
        )

    def release(self, epoch: int) -> None:
        """As `ScheduleStore.release`."""
        scripts.release(self._client, self._keys, epoch)

    def claim(self, claims: Sequence[Claim]) -> list[bool | Exception]:
        """As `ScheduleStore.claim`."""
        calls = [
            scripts.ClaimCall(
                claim.name,
                claim.epoch,
                claim.version,
                claim.planned_ms,
                claim.created_at_ms,
                claim.next_planned_ms,
                claim.next_due_ms,
                claim.skipped,
                [self._claimed(one) for one in claim.occurrences],
            )
            for claim in claims
        ]
        replies = scripts.claim_all(self._client, self._keys, calls) if calls else []
        return [
            queue_error("claim", reply, stream=self._keys.schedule(call.name), group=None)
            if isinstance(reply, Exception)
            else bool(reply)
            for call, reply in zip(calls, replies, strict=True)
        ]

    def postpone(self, seen: StoredSchedule, epoch: int, delay_ms: int | None, error: str) -> bool:
        """As `ScheduleStore.postpone`."""
        return scripts.postpone(
            self._client, self._keys, seen.name, epoch, seen.version, delay_ms=delay_ms, error=error
        )

    def deliver_task(self, occurrence: PendingOccurrence) -> bool:
        """As `ScheduleStore.deliver_task`."""
        delivery = occurrence.delivery
        if not isinstance(delivery, TaskDelivery):
            raise TypeError(f"{occurrence.id} is not a task")
        return scripts.enqueue_scheduled(
            self._client,
            self._queue(delivery.queue),
            occurrence.schedule,
            delivery.task,
            number=scripts.OccurrenceNumber(
                occurrence.sequence, occurrence.planned_ms, occurrence.created_ms
            ),
            keep_ms=_MARK_MS,
        ).is_new

    def pending(self) -> Iterator[PendingOccurrence]:
        """As `ScheduleStore.pending`."""
        after, page = "-", None
        while page is None or len(page) == _PENDING_PAGE:
            page = self._run("XRANGE", self._keys.outbox, after, "+", "COUNT", _PENDING_PAGE)
            for item_id, fields in page:
                after = f"({as_text(item_id)}"
                yield pending_of(item_id, [part for pair in pairs_of(fields) for part in pair])

    def confirm(self, item_ids: Sequence[str]) -> None:
        """As `ScheduleStore.confirm`."""
        if item_ids:
            self._run("XDEL", self._keys.outbox, *item_ids)

    def history(self, name: str, limit: int = 100) -> list[PastOccurrence]:
        """As `ScheduleStore.history`."""
        lines = (json.loads(line) for line in self._run("LRANGE", self._keys.history(name), 0, limit - 1))
        return [
            PastOccurrence(**{name: line[wire_name] for name, wire_name in _PAST_ON_THE_WIRE.items()})
            for line in lines
        ]

    def stats(self) -> BeatStats:
        """As `ScheduleStore.stats`."""
        now_ms, schedules, waiting, due, overdue, oldest, pending, leader, epoch = scripts.stats(
            self._client, self._keys, _OVERDUE_MS
        )
        oldest_ms = int(float(oldest))
        return BeatStats(
            now_ms=now_ms,
            schedules=schedules,
            waiting=waiting,
            due=due,
            overdue=overdue,
            oldest_overdue_ms=max(0, now_ms - oldest_ms) if due else 0,
            pending=pending,
            leader=as_text(leader) or None,
            epoch=epoch,
        )

    def _claimed(self, one: Occurrence) -> scripts.Claimed:
        if isinstance(one.delivery, TaskDelivery) and not self._is_cluster:
            task = (self._queue(one.delivery.queue), one.delivery.task)
            return scripts.Claimed(one.planned_ms, one.due_ms, one.id, task)
        return scripts.Claimed(one.planned_ms, one.due_ms, one.id, None, item_of(one.delivery))

    def _queue(self, queue: str) -> QueueKeys:
        return QueueKeys(self._keys.namespace, queue)

    def _unreadable(self, name: str, reply: Exception) -> QueueError:
        return queue_error("read schedule", reply, stream=self._keys.schedule(name), group=None)

    def _run(self, *command: Any) -> Any:
        return run_command(self._client, *command, stream=self._keys.prefix, group=None)


def _stored(name: str, due_ms: int | None, fields: dict[str, bytes]) -> StoredSchedule | None:
    """Of its fields; `None` if it is not there. Unknown fields are left out."""
    if "definition" not in fields or "version" not in fields:
        return None

    def number(field: str) -> int | None:
        return _whole(fields.get(field, b""))

    def text(field: str) -> str | None:
        return as_text(fields[field]) if field in fields else None

    times = [_whole(one) for one in fields.get("carried", b"").split()]
    carried = tuple(one for one in times if one is not None)
    return StoredSchedule(
        name=name,
        definition=fields["definition"],
        version=number("version") or 0,
        is_enabled=fields.get("enabled") != b"0",
        planned_ms=number("planned"),
        due_ms=due_ms,
        planned_due_ms=number("plannedDue"),
        carried_ms=carried,
        carried_until_ms=number("carriedUntil") if carried else None,
        runs=number("runs") or 0,
        skipped=number("skipped") or 0,
        last_planned_ms=number("lastPlanned"),
        last_at_ms=number("lastAtMs"),
        last_id=text("lastId"),
        last_drift_ms=number("lastDriftMs"),
        error=text("error"),
        error_at_ms=number("errorAtMs"),
        created_at_ms=number("createdAtMs"),
        updated_at_ms=number("updatedAtMs"),
    )


def _whole(value: bytes) -> int | None:
    """A number as the scripts write it; `None` for what somebody else has put in its place."""
    if not value.removeprefix(b"-").isdigit() or len(value) > _MOST_DIGITS:
        return None
    number = int(value)
    return number if str(number).encode() == value else None
