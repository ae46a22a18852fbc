"""What an occurrence of a schedule becomes: the task or the message that is written for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import NamedTuple

from redis.cluster import RedisCluster

from conquiet.errors import QueueError, text_of
from conquiet.mq import Producer, Topics
from conquiet.mq.send.partitioners import stable_hash
from conquiet.payload import encode_payload
from conquiet.queue import StreamWriter, open_client
from conquiet.queue.connection import REDIS_ERRORS, Client, is_unanswered, server_of
from conquiet.tasks import clock
from conquiet.tasks.app import TaskApp
from conquiet.tasks.beat.config import BeatConfig
from conquiet.tasks.options import TaskOptions
from conquiet.tasks.schedules.redis_store import RedisScheduleStore
from conquiet.tasks.schedules.schedule import Schedule
from conquiet.tasks.schedules.store import (
    Delivery,
    MessageDelivery,
    Occurrence,
    PendingOccurrence,
    ScheduleStore,
    StoredSchedule,
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


def destination_of(app: TaskApp, schedule: Schedule) -> str:
    """Where its occurrences are delivered."""
    target = schedule.target
    if isinstance(target, TaskTarget):
        return _queue_destination(_options_of(app, target).queue)
    return f"{target.kind} {target.name}"


def _queue_destination(queue: str) -> str:
    return f"queue {queue}"


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
    options = _options_of(app, target)
    # Not validated again: what a newer function does not take becomes a dead letter that says so.
    envelope = app.envelope(TaskCall(target.task, target.args, options))
    envelope.id = schedule.occurrence_id(planned_ms)
    meta = {**envelope.meta, "schedule": {"name": schedule.name, "plannedAt": _text(planned_ms)}}
    if schedule.expires_s is not None:
        expires_at = datetime_of(planned_ms) + timedelta(seconds=schedule.expires_s)
        meta["expiresAt"] = expires_at.isoformat(timespec="milliseconds")
    envelope.meta = meta
    return TaskDelivery(options.queue, app.prepare(envelope, options))


def _options_of(app: TaskApp, target: TaskTarget) -> TaskOptions:
    task = app.tasks.get(target.task)
    declared = app.defaults if task is None else task.options
    return replace(declared, delay_s=None, eta=None).but(**target.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What became of a page of the outbox."""

    count: int
    #: Schedules whose occurrences could not be delivered, and why.
    failed: dict[str, Exception]
    #: Schedules that had failed before, and did not now.
    recovered: set[str]


class _Route(NamedTuple):
    """What must be delivered in order, and is held back together."""

    schedule: str
    #: Not of the schedule alone: one whose target was corrected goes on there.
    destination: str


class _Held(NamedTuple):
    """A route on which nothing is delivered for a while."""

    until_ms: int
    error: str
    #: Which did not answer, or did not take it.
    server: str


class _Unanswered(NamedTuple):
    """A server that has not answered, and when it is asked again."""

    until_ms: int
    error: Exception


class Deliveries:
    """Delivers what was claimed into the outbox, page by page; lives as long as its beat.

    What cannot be delivered stays there, and the pages go on behind it until it is tried again: from the
    first page, in the order of its route. A server that has not answered is asked again by one item, at the
    end of a page: others get theirs before.
    """

    def __init__(self, app: TaskApp, store: ScheduleStore, client: Client, config: BeatConfig) -> None:
        self._app = app
        self._store = store
        self._messages = MessageSender(app.namespace, client)
        self._tasks = store
        if client is not app.client and isinstance(store, RedisScheduleStore):
            self._tasks = RedisScheduleStore(client, app.namespace)
        self._retry_ms = round(config.retry_s * 1000)
        # The beat renews its lease after each page.
        self._longest_s = config.lease_ttl_s / 3
        #: Whether there is another page.
        self.has_more = False
        self._after = ""
        self._held: dict[_Route, _Held] = {}
        self._unanswered: dict[str, _Unanswered] = {}
        #: Schedules whose last delivery has failed.
        self._failing: set[str] = set()
        #: How many items of held routes were seen since the first page, and in the walk before.
        self._seen: Counter[_Route] = Counter()
        self._seen_before: Counter[_Route] = Counter()

    def next_page(self) -> str:
        """The item behind which the next page begins."""
        if not self.has_more and any(self._is_over(held.until_ms) for held in self._held.values()):
            self._after = ""
        return self._after

    def undelivered(self, schedule: str, destination: str) -> int:
        """How many occurrences of a schedule wait for a delivery there that has failed."""
        route = _Route(schedule, destination)
        return max(self._seen[route], self._seen_before[route])

    def error_of(self, schedule: str) -> str | None:
        """Why occurrences of a schedule are not delivered now, and how many wait."""
        routes = [route for route in self._held if route.schedule == schedule]
        if not routes:
            return None
        count, error = sum(self.undelivered(*route) for route in routes), self._held[routes[0]].error
        return error if count < 2 else f"{count} occurrences are not delivered yet: {error}"

    def deliver(self, pending: Sequence[PendingOccurrence], most: int) -> Delivered:
        """Deliver a page, in the order of each route.

        Args:
            most: the most items that a page has.
        """
        begun = monotonic()
        if not self._after:
            self._held = {
                route: held for route, held in self._held.items() if not self._is_over(held.until_ms)
            }
            self._seen_before, self._seen = self._seen, Counter()
        done: list[PendingOccurrence] = []
        failed: dict[str, Exception] = {}
        # If there is but one, it has just answered the beat.
        self._unanswered.pop("", None)
        silent: dict[str, PendingOccurrence] = {}
        last = ""
        for one in pending:
            last, route = one.item_id, route_of(one)
            # In order: the mark of a later one would say of this that it was enqueued.
            if not self._is_held(route):
                server = self._server(one.delivery)
                error = self._try(one, server, silent)
                if error is None:
                    done.append(one)
                else:
                    failed[one.schedule] = error
                    self._hold(one, server, error)
            if self._is_held(route):
                self._seen[route] += 1
            if monotonic() - begun > self._longest_s:
                break
        self.has_more = bool(pending) and (last != pending[-1].item_id or len(pending) == most)
        self._after = (last or self._after) if self._held else ""
        if answered := self._ask_again(silent):
            done.append(answered)
        self._store.confirm([one.item_id for one in done])
        waiting = {route.schedule for route in self._held}
        failed = {name: error for name, error in failed.items() if name in waiting}
        recovered = {one.schedule for one in done} & self._failing
        recovered -= waiting
        self._failing = (self._failing | failed.keys()) - recovered
        return Delivered(count=len(done), failed=failed, recovered=recovered)

    def _is_held(self, route: _Route) -> bool:
        # Where one that cannot be read goes is not known: it may be there.
        return route in self._held or _Route(route.schedule, "") in self._held

    def drop_deleted(
        self, pending: Sequence[PendingOccurrence], kept: Mapping[str, StoredSchedule]
    ) -> Counter[str]:
        """Remove what cannot be delivered of schedules that were deleted; how many, by schedule.

        Args:
            kept: the schedules that are there, of those that have failed.
        """
        dropped = [one for one in pending if route_of(one) in self._held and _is_deleted(one, kept)]
        self._store.confirm([one.item_id for one in dropped])
        for route, count in Counter(map(route_of, dropped)).items():
            self._seen[route] -= count
            self._seen_before.pop(route, None)
            if self._seen[route] <= 0:
                del self._held[route]
        return Counter(one.schedule for one in dropped)

    def _try(
        self, one: PendingOccurrence, server: str, silent: dict[str, PendingOccurrence]
    ) -> Exception | None:
        """Deliver one, unless its server has not answered before; the error if it was not delivered."""
        if server not in self._unanswered:
            return self._send(one, server)
        if self._is_over(self._unanswered[server].until_ms):
            silent.setdefault(server, one)
        return self._unanswered[server].error

    def _ask_again(self, silent: Mapping[str, PendingOccurrence]) -> PendingOccurrence | None:
        """Deliver one item to the server that was asked the longest ago; if it answers, others follow."""
        if not silent:
            return None
        server = min(silent, key=lambda name: self._unanswered[name].until_ms)
        del self._unanswered[server]
        error = self._send(silent[server], server)
        if server in self._unanswered:
            return None
        self._held = {route: held for route, held in self._held.items() if held.server != server}
        if error is not None:
            self._hold(silent[server], server, error)
        self._after, self.has_more = "", True
        return silent[server] if error is None else None

    def _send(self, one: PendingOccurrence, server: str) -> Exception | None:
        if isinstance(one.delivery, UnreadableDelivery):
            return ValueError(one.delivery.reason)
        try:
            if isinstance(one.delivery, MessageDelivery):
                self._messages.send(one, one.delivery)
            else:
                self._tasks.deliver_task(one)
        except Exception as error:  # noqa: BLE001 -- of one schedule: nobody else must wait for it
            if isinstance(error, QueueError) and is_unanswered(error):
                self._unanswered[server] = _Unanswered(clock.now_ms() + self._retry_ms, error)
            return error
        return None

    def _hold(self, one: PendingOccurrence, server: str, error: Exception) -> None:
        self._held[route_of(one)] = _Held(clock.now_ms() + self._retry_ms, text_of(error), server)

    def _server(self, delivery: Delivery | UnreadableDelivery) -> str:
        if isinstance(delivery, UnreadableDelivery):
            return ""
        # No node may have its slot: then the delivery says so.
        with suppress(*REDIS_ERRORS):
            if isinstance(delivery, TaskDelivery):
                return server_of(self._app.client, self._app.keys(delivery.queue).meta)
            if delivery.kind == "stream":
                return server_of(self._app.client, delivery.name)
        if isinstance(delivery, TaskDelivery):
            return ""
        # Of a cluster, where the partitions of a topic are on several servers.
        return f"topic {delivery.name}" if isinstance(self._app.client, RedisCluster) else ""

    def _is_over(self, until_ms: int) -> bool:
        # Also if the clock was set back.
        return not 0 < until_ms - clock.now_ms() <= self._retry_ms


def open_delivery_client(app: TaskApp, config: BeatConfig) -> Client:
    """The app's; on a cluster one that waits for less than the lease: a node without schedules may hang."""
    if not isinstance(app.client, RedisCluster):
        return app.client
    timeout_s = config.lease_ttl_s / 4
    return open_client(app.settings.redis_url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)


def route_of(one: PendingOccurrence) -> _Route:
    """By which it is held back."""
    match one.delivery:
        case TaskDelivery():
            return _Route(one.schedule, _queue_destination(one.delivery.queue))
        case MessageDelivery():
            return _Route(one.schedule, f"{one.delivery.kind} {one.delivery.name}")
        case UnreadableDelivery():
            return _Route(one.schedule, "")


def _is_deleted(one: PendingOccurrence, kept: Mapping[str, StoredSchedule]) -> bool:
    """Whether its schedule is gone, or was created again since."""
    if isinstance(one.delivery, UnreadableDelivery):
        # A later version may read it.
        return False
    schedule = kept.get(one.schedule)
    if schedule is None:
        return True
    return bool(one.created_ms and schedule.created_at_ms) and one.created_ms != schedule.created_at_ms


class MessageSender:
    """Sends the messages of occurrences, each once: their ids are remembered for a day."""

    def __init__(self, namespace: str, client: Client) -> None:
        self._namespace = namespace
        self._client = client
        self._producer = Producer(client)

    def send(self, occurrence: PendingOccurrence, delivery: MessageDelivery) -> None:
        """Send it, unless it was sent before.

        Raises:
            QueueError: Redis failed.
            TopicError: there is no such topic.
        """
        document = json.loads(delivery.data)
        # Apps of other namespaces may have a schedule of the same name, and send to the same stream.
        # One that was deleted and created again may have the same time once more.
        dedupe_id = f"{self._namespace}:{occurrence.created_ms}:{occurrence.id}"
        if delivery.kind == "stream":
            writer = StreamWriter(self._client, delivery.name)
            writer.enqueue_once([document["payload"]], dedupe_id=dedupe_id)
            return
        partition = None
        if document["key"] is None:
            # Sent again, it goes to the same partition: on a cluster no other one knows its id.
            count = Topics(self._client).open(delivery.name).partition_count
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
