"""RunMessages: the messages that a DAG run has taken, pending at a consumer of the run's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.task_try import TaskTry
from conquiet import ConquietError, DeadLetter, QueueMessage, RedisStreamsQueue
from conquiet.consume.stream_channel import Page, StreamChannel
from conquiet.queue import entry_id_order
from conquiet.queue.batch_size import BATCH_BYTES, BatchSize

log = logging.getLogger(__name__)

_PREFIX = "airflow-run:"
#: Their ids are in an XCom, a row of Airflow's database.
MOST_MESSAGES = 1_000
#: Of their payloads, which a task may have in memory all at once.
MAX_BYTES = 4 * BATCH_BYTES


class RunMessagesGoneError(ConquietError):
    """Messages that a run took are no longer its own: they were acked, or handed back."""

    def __init__(self, *, stream: str, group: str, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(
            f"{len(missing)} messages of stream {stream!r}, the first is {missing[0]}, are not pending "
            f"for this run in group {group!r} any more: they were acked, handed back when the run failed, or "
            "taken by another run while this one could not renew them; clear the task that took them too"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMessages:
    """What one run has taken; the same whichever try of whichever of its tasks asks."""

    redis_streams_conn_id: str
    stream: str
    group: str
    consumer: str
    #: After which other runs take over what was not renewed.
    claim_idle_ms: int

    @classmethod
    def of_try(cls, task_try: TaskTry, **names: Any) -> Self:
        """Those that the task of this try takes, as all of its tries do."""
        return cls(consumer=f"{_PREFIX}{task_try.task_instance}", **names)

    @classmethod
    def of_report(cls, taken: object) -> Self:
        """Those that a task has reported to have taken.

        Raises:
            ValueError: it is no report of a `TakeOperator`.
        """
        if not isinstance(taken, Mapping) or not set(cls.__dataclass_fields__) <= taken.keys():
            raise ValueError(
                f"taken is the output of a TakeOperator, as in taken=take.output; got {taken!r:.100}"
            )
        return cls(**{name: taken[name] for name in cls.__dataclass_fields__})

    def report(self, ids: Sequence[str], counts: Mapping[str, int]) -> dict[str, Any]:
        """For XCom: where they are, their ids, and how many."""
        return {**asdict(self), "taken": len(ids), **counts, "ids": list(ids)}

    def take(
        self, most: int, max_deliveries: int | None, max_bytes: int = MAX_BYTES
    ) -> tuple[list[str], dict[str, int]]:
        """Take what an earlier try took, what other runs handed back or left, then new messages.

        What was delivered too often, and malformed entries, become dead letters. After `max_bytes` nothing
        more is taken, but all that an earlier try took: it is acked when the run succeeds.
        """
        with self._hook() as hook:
            queue = self._queue(hook)
            own: Page = lambda count, after: queue.own_page(count, after=after)  # noqa: E731
            stale: Page = lambda count, after: queue.claim_page(self.claim_idle_ms, count, after=after)  # noqa: E731
            taken = _Taken(max_deliveries)
            # 0: malformed entries are given up at once.
            channel = StreamChannel(queue, [own], max_deliveries=0)
            while taken.read(channel, most):
                pass
            channel = StreamChannel(queue, [stale], max_deliveries=0, reads_new=True)
            while len(taken.counts) < most and taken.size < max_bytes:
                if not taken.read(channel, most - len(taken.counts)):
                    break
            self._remove_old_consumers(hook, queue)
        again = sum(count > 1 for count in taken.counts.values())
        ids = sorted(taken.counts, key=entry_id_order)
        return ids, {"redelivered": again, "dead_lettered": taken.dead}

    def messages(self, ids: Sequence[str]) -> list[QueueMessage]:
        """The messages, with their payloads, in order: about as many bytes as `take` was allowed.

        Raises:
            RunMessagesGoneError: they are not this run's any more.
        """
        with self._hook() as hook:
            queue = self._queue(hook)
            counts = queue.pending_counts(MOST_MESSAGES)
            missing = [entry_id for entry_id in ids if entry_id not in counts]
            if missing:
                raise RunMessagesGoneError(stream=self.stream, group=self.group, missing=missing)
            return queue.pending_messages({entry_id: counts[entry_id] for entry_id in ids})

    def keep(self, hook: RedisStreamsHook) -> int:
        """Reset their idle time, so that no other run takes them; returns how many there are."""
        queue = self._queue(hook)
        return len(queue.change_pending("renew", queue.pending_counts(MOST_MESSAGES)))

    def settle(self, hook: RedisStreamsHook, *, is_success: bool) -> dict[str, Any]:
        """Ack them, or hand them back with their delivery count; returns how many."""
        queue = self._queue(hook)
        counts = queue.pending_counts(MOST_MESSAGES)
        if is_success:
            settled = queue.ack_ids(list(counts))
            queue.remove_consumer(self.consumer)
        else:
            settled = len(queue.change_pending("release", counts))
        done = "acked" if is_success else "handed_back"
        log.info("%s messages of stream %r are %s", settled, self.stream, done.replace("_", " "))
        return {"stream": self.stream, "group": self.group, "acked": 0, "handed_back": 0, done: settled}

    def _hook(self) -> RedisStreamsHook:
        return RedisStreamsHook(self.redis_streams_conn_id)

    def _queue(self, hook: RedisStreamsHook) -> RedisStreamsQueue:
        return hook.queue(self.stream, self.group, self.consumer, claim_idle_ms=self.claim_idle_ms)

    def _remove_old_consumers(self, hook: RedisStreamsHook, queue: RedisStreamsQueue) -> None:
        for one in hook.backlog(self.stream, self.group).consumers:
            is_old = one.name.startswith(_PREFIX) and one.idle_ms > self.claim_idle_ms and not one.pending
            if is_old and one.name != self.consumer:
                queue.remove_consumer(one.name)


class _Taken:
    """Ids and delivery counts of what is taken, without the content, which may be large."""

    def __init__(self, max_deliveries: int | None) -> None:
        self._max_deliveries = max_deliveries
        self._sizes = BatchSize(MOST_MESSAGES)
        self.counts: dict[str, int] = {}
        self.size = 0
        self.dead = 0

    def read(self, channel: StreamChannel, most: int) -> bool:
        """Take what one read brings; `False` if it brings nothing, and no later one would."""
        delivery = channel.read((), min(self._sizes.next, most), 1)
        if delivery is None or (not len(delivery) and channel.is_caught_up):
            return False
        self._sizes.learn(delivery)
        self._sizes.took(0.0)
        settlements = [channel.decide_malformed(entry) for entry in delivery.malformed]
        for msg in delivery.messages:
            if self._max_deliveries is not None and msg.delivery_count > self._max_deliveries:
                reason = f"its runs failed {self._max_deliveries} times"
                settlements.append(channel.decide(msg, DeadLetter(reason), 0.0))
            else:
                self.counts[msg.id] = msg.delivery_count
                self.size += len(msg.data)
        channel.settle(settlements)
        given_up = [one.entry_id for one in settlements if not one.is_refused]
        for entry_id in given_up:
            log.warning("entry %s of %s is a dead letter now", entry_id, channel.stream)
        self.dead += len(given_up)
        return True
