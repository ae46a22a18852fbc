"""TaskChannel: the queues of a worker as a channel; what fails is retried or becomes a dead letter."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeGuard

from conquiet.consume.channel import KeyOf
from conquiet.consume.outcome import Outcome, Settlement
from conquiet.consume.report import Elsewhere
from conquiet.errors import MalformedEntry, QueueError
from conquiet.logs import MessageLog
from conquiet.mq.clock import lease_clock
from conquiet.queue.batch_size import BATCH_BYTES
from conquiet.queue.connection import Client
from conquiet.tasks import scripts
from conquiet.tasks.admission import Admission
from conquiet.tasks.batch import ChannelApp, TaskBatch
from conquiet.tasks.blocking_reader import BlockingReader, Found
from conquiet.tasks.keys import GROUP, QueueKeys
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.metrics import TaskMetrics
from conquiet.tasks.reserved import Reserved
from conquiet.tasks.scripts import Read, Taken
from conquiet.tasks.settlement import TaskRules, TaskSettlement
from conquiet.tracing import Where

_log = MessageLog(logging.getLogger(__name__))

#: Quick tasks are read in batches that take about so long, slow ones as `prefetch` says.
_BATCH_S = 0.1
#: A wait ends after this time, so that what others freed is seen.
_LONGEST_WAIT_MS = 1_000

_NOT_PENDING = (
    "task %s of queue %r was not pending here any more: settled by a call whose reply was lost, or taken "
    "over by another worker"
)


class TaskChannel:
    """The queues that one consumer reads, in turn; lives as long as its loop.

    Its thread reads and settles. Another one may use `reserved`.
    """

    is_shared = False
    key_of: KeyOf | None = None
    #: What is pending at others is theirs, and a dead one's is taken over.
    elsewhere = Elsewhere()
    can_settle = True

    def __init__(
        self,
        client: Client,
        queues: Sequence[QueueKeys],
        consumer: str,
        app: ChannelApp,
        *,
        prefetch: int,
        follow: Callable[[QueueKeys, str, str], object],
        max_outage_s: float = 60.0,
        max_bytes: int = BATCH_BYTES,
    ) -> None:
        self._client, self._follow, self._max_bytes = client, follow, max_bytes
        self._reader = BlockingReader(client, consumer)
        self._queues = deque(queues)
        self._keys = {keys.prefix: keys for keys in queues}
        self._app, self._prefetch = app, prefetch
        self.admission, self.consumer = Admission(client, app.rate_limiter, app.codec), consumer
        self.rules = TaskRules(consumer, app.tasks)
        names = ",".join(keys.queue for keys in queues)
        self.where = Where(destination=names, group=GROUP, consumer=consumer)
        self.max_outage_s, self.max_outages_of_message = max_outage_s, 5
        self.stream, self.is_caught_up, self.claimed_by_others = queues[0].prefix, True, 0
        #: Seconds that a task took lately, its longest.
        self._recent_s = 1.0
        #: What was read and is not begun.
        self.reserved = Reserved(partial(_hand_back_unbegun, queues, self.rules, consumer))
        #: Until when, by `lease_clock`, the consumer certainly counts as alive; the heartbeat moves it on.
        self.lease_valid_until = math.inf
        self._metrics = TaskMetrics(app.tasks)
        #: The last one that was counted when it began: it may have been revoked since it was read.
        self._beginning: tuple[TaskMessage, ...] = ()

    def read(self, settlements: Sequence[Settlement], size: int, wait_ms: int | None) -> TaskBatch:
        """As `Channel.read`; never `None`: a queue has no end."""
        self.reserved.finish_release(self._client)
        # Of queues that this read may not come to.
        self.settle([one for one in settlements if not _is_of(one, self._queues[0])])
        # As many as take about 0.1 s, and at least as `prefetch` says.
        quick = int(_BATCH_S / max(self._recent_s, 1e-4))
        wanted = max(1, min(size, max(self._prefetch, quick)))
        batch, next_due_ms, is_any_open = TaskBatch(), _LONGEST_WAIT_MS, False
        for _ in range(len(self._queues)):
            keys = self._queues[0]
            reply = self._settle_and_read(keys, _of_queue(settlements, keys), wanted - len(batch.messages))
            batch.add(self._app, keys, reply.entries)
            if reply.next_due_ms is not None:
                next_due_ms = min(next_due_ms, reply.next_due_ms)
            is_any_open = is_any_open or not reply.is_paused
            # The next read begins with the next queue, so that none starves.
            self._queues.rotate(-1)
            if len(batch.messages) >= wanted:
                break
        else:
            if not batch.messages and not batch.malformed:
                longest = _LONGEST_WAIT_MS if wait_ms is None else wait_ms
                wait_ms = max(1, min(longest, next_due_ms))
                for found in self._reader.wait(self._queues if is_any_open else (), wait_ms):
                    batch.add(self._app, found.keys, self._in_order(found, wanted))
        self.admission.examine(batch.messages)
        self.reserved.replace(batch.messages)
        return batch

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """As `Channel.settle`, one script for each queue."""
        for keys in self._keys.values():
            if mine := _of_queue(settlements, keys):
                self._settle_and_read(keys, mine, 0)

    def next_message(self, queued: deque[TaskMessage]) -> TaskMessage | None:
        """As `Channel.next_message`; without those that another thread has released, and that must wait.

        Raises:
            QueueError: the heartbeat was not renewed in time; the loop begins anew under another name.
        """
        if lease_clock() >= self.lease_valid_until:
            # As after a freeze: to begin a task now may be to run it beside the worker that took it over.
            reason = "its heartbeat was not renewed in time, its tasks may be another worker's"
            raise QueueError("next task", stream=self.stream, group=GROUP, reason=reason)
        if self.admission.must_look():
            for keys in self._keys.values():
                self._settle_and_read(keys, (), 0)
        msg = queued.popleft()
        if not self.reserved.take(msg):
            return None
        delay_ms = self.admission.delay_ms(msg)
        if delay_ms is None:
            return msg
        self.settle([self.rules.hand_back(msg, delay_ms)])
        return None

    def wake(self, *, for_good: bool = True) -> None:
        """End a wait for new tasks, now and from now on; for another thread, as one that stops the loop."""
        self._reader.wake(for_good=for_good)

    def set_aside(self, msg: TaskMessage) -> None:
        """Nothing is kept back: tasks have no order."""

    def take_back(self, msg: TaskMessage) -> Sequence[TaskMessage]:
        """The task alone."""
        self.reserved.add(msg)
        return (msg,)

    def begin(self, msg: TaskMessage) -> Settlement | None:
        """As `Channel.begin`: what waited is counted when it begins."""
        if msg.is_counted:
            return None
        msg.is_counted = True
        self._beginning = (msg,)
        return self.rules.begin(msg)

    def settlement_without_handler(self, msg: TaskMessage) -> Settlement | None:
        """As `Channel.settlement_without_handler`: revoked, expired, unknown, or delivered too often."""
        return self.rules.without_function(msg, is_revoked=self.admission.is_revoked(msg))

    def decide(self, msg: TaskMessage, result: Outcome | Exception, seconds: float) -> Settlement:
        """As `Channel.decide`."""
        self._recent_s = max(seconds, self._recent_s / 2)
        settlement = self.rules.for_result(msg, result)
        if msg.started_ms:
            times = {"seconds": seconds, "wait_s": msg.waited_s(), "total_s": msg.age_s()}
            self._metrics.ended(msg.envelope.name, msg.place.keys.queue, **times)
        return settlement

    def decide_malformed(self, entry: MalformedEntry) -> Settlement:
        """As `Channel.decide_malformed`: a dead letter with its bytes."""
        return self.rules.for_malformed(entry)

    def hand_back(self, queued: Sequence[TaskMessage]) -> int:
        """As `Channel.hand_back`: others take them at once."""
        settlements = [self.rules.hand_back(msg) for msg in self.reserved.take_all(queued)]
        self.settle(settlements)
        lost = sum(settlement.is_refused for settlement in settlements)
        self.claimed_by_others += lost
        return len(queued) - lost

    def as_delivered(self, msg: TaskMessage) -> TaskMessage:
        """As `Channel.as_delivered`."""
        return replace(msg, envelope=self._app.codec.decode(msg.data), result=None, started_ms=0)

    def described(self, delivered: TaskMessage | MalformedEntry) -> tuple[str, int]:
        """As `Channel.described`; attempts of tasks are counted from 0."""
        if isinstance(delivered, MalformedEntry):
            return f"entry {delivered.id} of {self}", delivered.delivery_count - 1
        return f"task {delivered.envelope.name} {delivered.id}", delivered.delivery_count - 1

    def count_unavailable(self, messages: int) -> None:
        """No metric: the task starts later."""

    def __str__(self) -> str:
        return f"task queues {self.where.destination}"

    def _in_order(self, found: Found, wanted: int) -> Sequence[Taken]:
        if found.is_highest:
            return found.entries
        # Handed back and read again in one step: what the wait has read may be before a higher priority.
        back = [self.rules.unread(found.keys, taken) for taken in found.entries]
        return self._settle_and_read(found.keys, back, wanted).entries

    def _settle_and_read(self, keys: QueueKeys, settlements: Sequence[TaskSettlement], count: int) -> Read:
        ended = [[one.entry_id, one.name, one.state] for one in settlements if one.state is not None]
        reply = scripts.settle_and_read(
            self._client,
            keys,
            self.consumer,
            [settlement.change() for settlement in settlements],
            count=count,
            max_bytes=self._max_bytes,
            event=json.dumps(ended) if ended else "",
        )
        # All of them first: whatever what follows raises, none is settled again.
        for number, settlement in enumerate(settlements):
            settlement.is_refused, settlement.is_done = number in reply.refused, True
        for settlement in settlements:
            if settlement.is_refused:
                _log.warning(_NOT_PENDING, settlement.entry_id, keys.queue)
                continue
            if settlement.follow_up:
                self._follow(keys, settlement.entry_id, settlement.follow_up)
            if settlement.stored_key:
                self._app.codec.payloads.remove_unneeded(keys.queue, settlement.stored_key)
        if settlements:
            states = [(one.name, one.state) for one in settlements if one.state and not one.is_refused]
            self._metrics.settled(keys.queue, states, len(reply.refused))
        self.admission.noticed(keys, reply, (*self.reserved.messages(), *self._beginning))
        self.admission.settled(keys, settlements)
        return reply


def _hand_back_unbegun(
    queues: Sequence[QueueKeys],
    rules: TaskRules,
    consumer: str,
    client: Client,
    messages: Sequence[TaskMessage],
) -> None:
    for keys in queues:
        changes = [rules.hand_back(msg).change() for msg in messages if msg.place.keys is keys]
        if changes:
            scripts.settle_and_read(client, keys, consumer, changes, count=0, max_bytes=1)


def _is_of(settlement: Settlement, keys: QueueKeys) -> TypeGuard[TaskSettlement]:
    return isinstance(settlement, TaskSettlement) and settlement.place.keys is keys


def _of_queue(settlements: Sequence[Settlement], keys: QueueKeys) -> list[TaskSettlement]:
    return [one for one in settlements if _is_of(one, keys) and not one.is_done]
