"""What an occurrence of a schedule becomes: the task or the message that is written for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import NamedTuple

from redis.cluster import RedisCluster

from conquiet.errors import QueueError, text_of
from conquiet.mq import Producer, Topics
from conquiet.mq.send.partitioners import stable_hash
from conquiet.payload import encode_payload
from conquiet.queue import StreamWriter
from conquiet.queue.connection import is_unanswered, server_of
from conquiet.tasks import clock
from conquiet.tasks.app import TaskApp
from conquiet.tasks.beat.config import BeatConfig
from conquiet.tasks.schedules.schedule import Schedule
from conquiet.tasks.schedules.store import (
    Delivery,
    MessageDelivery,
    Occurrence,
    PendingOccurrence,
    ScheduleStore,
    TaskDelivery,
    UnreadableDelivery,
)
from conquiet.tasks.schedules.target import TaskTarget
from conquiet.tasks.schedules.timing import datetime_of
from conquiet.tasks.task import TaskCall


def occurrence_of(app: TaskApp, schedule: Schedule, planned_ms: int) -> Occurrence:
    """An occurrence to claim; its id is always the same."""
    return Occurrence(
        planned_ms=planned_ms,
        due_ms=schedule.due_ms(planned_ms),
        id=schedule.occurrence_id(planned_ms),
        delivery=_delivery_of(app, schedule, planned_ms),
    )


def _delivery_of(app: TaskApp, schedule: Schedule, planned_ms: int) -> Delivery:
    target = schedule.target
    if isinstance(target, TaskTarget):
        return _task_delivery(app, schedule, target, planned_ms)
    headers = {**target.headers, "schedule": schedule.name, "planned-at": _text(planned_ms)}
    document = {
        "payload": dict(target.payload),
        "key": target.key,
        "headers": headers if target.kind == "topic" else {},
    }
    return MessageDelivery(kind=target.kind, name=target.name, data=encode_payload(document))


def _task_delivery(app: TaskApp, schedule: Schedule, target: TaskTarget, planned_ms: int) -> TaskDelivery:
    task = app.tasks.get(target.task)
    declared = app.defaults if task is None else task.options
    options = replace(declared, delay_s=None, eta=None).but(**target.options)
    # Not validated again: what a newer function does not take becomes a dead letter that says so.
    envelope = app.envelope(TaskCall(target.task, target.args, options))
    envelope.id = schedule.occurrence_id(planned_ms)
    meta = {**envelope.meta, "schedule": {"name": schedule.name, "plannedAt": _text(planned_ms)}}
    if schedule.expires_s is not None:
        expires_at = datetime_of(planned_ms) + timedelta(seconds=schedule.expires_s)
        meta["expiresAt"] = expires_at.isoformat(timespec="milliseconds")
    envelope.meta = meta
    return TaskDelivery(options.queue, app.prepare(envelope, options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What became of a page of the outbox."""

    count: int
    #: Schedules whose occurrences could not be delivered, and why.
    failed: dict[str, Exception]
    #: Schedules that had failed before, and did not now.
    recovered: set[str]


class _Held(NamedTuple):
    """A schedule of which nothing is delivered for a while."""

    until_ms: int
    error: str


class Deliveries:
    """Delivers what was claimed into the outbox, page by page; lives as long as its beat.

    What cannot be delivered stays there, and the pages go on behind it until it is tried again: from the
    first page, in the order of its schedule.
    """

    def __init__(self, app: TaskApp, store: ScheduleStore, config: BeatConfig) -> None:
        self._app = app
        self._store = store
        self._messages = MessageSender(app)
        self._retry_ms = round(config.retry_s * 1000)
        # The beat renews its lease after each page.
        self._longest_s = config.lease_ttl_s / 3
        #: Whether there is another page.
        self.has_more = False
        self._after = ""
        self._held: dict[str, _Held] = {}
        #: Schedules whose last delivery has failed.
        self._failing: set[str] = set()
        #: How many items of held schedules were seen since the first page, and in the walk before.
        self._seen: Counter[str] = Counter()
        self._seen_before: Counter[str] = Counter()

    def next_page(self) -> str:
        """The item behind which the next page begins."""
        if not self.has_more and any(self._is_over(held) for held in self._held.values()):
            self._after = ""
        return self._after

    def undelivered(self, schedule: str) -> int:
        """How many occurrences of a schedule wait for a delivery that has failed."""
        return max(self._seen[schedule], self._seen_before[schedule])

    def error_of(self, schedule: str) -> str | None:
        """Why nothing of a schedule is delivered now, and how many occurrences wait."""
        held, count = self._held.get(schedule), self.undelivered(schedule)
        if held is None or count < 2:
            return None if held is None else held.error
        return f"{count} occurrences are not delivered yet: {held.error}"

    def deliver(self, pending: Sequence[PendingOccurrence], most: int) -> Delivered:
        """Deliver a page, in the order of each schedule.

        Args:
            most: the most items that a page has.
        """
        begun = monotonic()
        if not self._after:
            self._held = {name: held for name, held in self._held.items() if not self._is_over(held)}
            self._seen_before, self._seen = self._seen, Counter()
        done: list[PendingOccurrence] = []
        failed: dict[str, Exception] = {}
        unanswered: dict[str, Exception] = {}
        last = ""
        for one in pending:
            last = one.item_id
            # In order: the mark of a later one would say of this that it was enqueued.
            if one.schedule not in self._held:
                error = self._try(one, unanswered)
                if error is None:
                    done.append(one)
                else:
                    failed[one.schedule] = error
                    self._held[one.schedule] = _Held(clock.now_ms() + self._retry_ms, text_of(error))
            if one.schedule in self._held:
                self._seen[one.schedule] += 1
            if monotonic() - begun > self._longest_s:
                break
        self._store.confirm([one.item_id for one in done])
        self.has_more = bool(pending) and (last != pending[-1].item_id or len(pending) == most)
        self._after = (last or self._after) if self._held else ""
        recovered = ({one.schedule for one in done} & self._failing) - failed.keys()
        self._failing = (self._failing | failed.keys()) - recovered
        return Delivered(count=len(done), failed=failed, recovered=recovered)

    def _try(self, one: PendingOccurrence, unanswered: dict[str, Exception]) -> Exception | None:
        """Deliver one, unless its server has just not answered; the error if it was not delivered."""
        delivery = one.delivery
        if isinstance(delivery, UnreadableDelivery):
            return ValueError(delivery.reason)
        server = ""
        try:
            server = self._server(delivery)
            if server in unanswered:
                return unanswered[server]
            if isinstance(delivery, MessageDelivery):
                self._messages.send(one, delivery)
            else:
                self._store.deliver_task(one)
        except Exception as error:  # noqa: BLE001 -- of one schedule: nobody else must wait for it
            if isinstance(error, QueueError) and is_unanswered(error):
                unanswered[server] = error
            return error
        return None

    def _server(self, delivery: Delivery) -> str:
        if isinstance(delivery, TaskDelivery):
            return server_of(self._app.client, self._app.keys(delivery.queue).meta)
        if delivery.kind == "stream":
            return server_of(self._app.client, delivery.name)
        # Of a cluster, where the partitions of a topic are on several servers.
        return f"topic {delivery.name}" if isinstance(self._app.client, RedisCluster) else ""

    def _is_over(self, held: _Held) -> bool:
        # Also if the clock was set back.
        return not 0 < held.until_ms - clock.now_ms() <= self._retry_ms


class MessageSender:
    """Sends the messages of occurrences, each once: their ids are remembered for a day."""

    def __init__(self, app: TaskApp) -> None:
        self._app = app
        self._producer = Producer(app.client)

    def send(self, occurrence: PendingOccurrence, delivery: MessageDelivery) -> None:
        """Send it, unless it was sent before.

        Raises:
            QueueError: Redis failed.
            TopicError: there is no such topic.
        """
        document = json.loads(delivery.data)
        # Apps of other namespaces may have a schedule of the same name, and send to the same stream.
        # One that was deleted and created again may have the same time once more.
        dedupe_id = f"{self._app.namespace}:{occurrence.created_ms}:{occurrence.id}"
        if delivery.kind == "stream":
            writer = StreamWriter(self._app.client, delivery.name)
            writer.enqueue_once([document["payload"]], dedupe_id=dedupe_id)
            return
        partition = None
        if document["key"] is None:
            # Sent again, it goes to the same partition: on a cluster no other one knows its id.
            count = Topics(self._app.client).open(delivery.name).partition_count
            partition = stable_hash(dedupe_id) % count
        self._producer.send(
            delivery.name,
            document["payload"],
            key=document["key"],
            headers=document["headers"],
            partition=partition,
            dedupe_id=dedupe_id,
        )


def _text(moment_ms: int) -> str:
    return datetime_of(moment_ms).isoformat(timespec="milliseconds")
