"""WatchedStream: the messages of one stream for one watcher, whose group nobody else may read."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from conquiet import (
    ConquietError,
    MalformedEntry,
    MalformedEntryError,
    QueueMessage,
    RedisStreamsQueue,
)
from conquiet.consume import quarantine
from conquiet.logs import MessageLog, message_fields

log = MessageLog(logging.getLogger(__name__))

#: Short, so that acks, which share the thread, do not wait long.
_BLOCK_MS = 500
_PAGE = 100
#: The most that one pass over pending messages takes; the next pass goes on.
_MAX_PAGES = 10
#: A consumer that reads is seen by the server twice a second; one that was not seen for this long is gone.
_GONE_MS = 10_000


class GroupTakenError(ConquietError):
    """Somebody else reads the watcher's group: each would get a part of the messages."""

    def __init__(self, *, stream: str, group: str, consumer: str) -> None:
        super().__init__(
            f"group {group!r} of stream {stream!r} is being read by consumer {consumer!r}; "
            "give this watcher a group of its own"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Whose messages, from where, and how often pending ones are looked for."""

    redis_streams_conn_id: str
    stream: str
    group: str
    #: The same after a restart of the triggerer: what was pending is found under it again.
    consumer: str
    #: Whether a group that is not there yet begins at the end of the stream instead of at its beginning.
    from_end: bool = False
    #: How often pending messages are looked for that nobody is busy with.
    reread_s: float = 30.0
    #: What another consumer left pending for this long is taken over: this watcher had other arguments once.
    take_over_ms: int = 60_000


class WatchedStream:
    """Takes messages and settles them; every call blocks and belongs into one thread.

    Malformed entries are moved to the quarantine as they are met. After an error `close()` it: the next call
    opens it again and begins with what is pending.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._hook = RedisStreamsHook(watch.redis_streams_conn_id)
        self._queue: RedisStreamsQueue | None = None
        self._from_end = watch.from_end
        self._next_pass = 0.0

    def take(self, count: int) -> list[QueueMessage]:
        """Pending messages when it is their time, else up to `count` new ones; waits a moment for them."""
        queue = self._opened()
        if time.monotonic() >= self._next_pass:
            self._refuse_company(queue)
            pending = self._pending(queue)
            self._next_pass = time.monotonic() + self._watch.reread_s
            if pending:
                return pending
        try:
            return queue.read(_BLOCK_MS, count)
        except MalformedEntryError as error:
            self._quarantine_malformed(queue, error.entries)
            return list(error.messages)

    def ack(self, entry_ids: Sequence[str]) -> None:
        """Settle messages whose events are stored."""
        self._opened().ack_ids(entry_ids)

    def quarantine(self, msg: QueueMessage, reason: str) -> bool:
        """Settle a message that was refused: moved to the quarantine, or still pending and `False`."""
        moved = quarantine(self._opened(), msg, reason=reason)
        if moved is not None:
            facts, told = (msg.id, msg.stream, reason), message_fields(msg, consumer=self._watch.consumer)
            log.warning("moved message %s of %s to the quarantine: %s", *facts, extra=told)
        return moved is not None

    def close(self) -> None:
        """Close the client; what is pending stays pending."""
        self._queue = None
        self._next_pass = 0.0
        self._hook.close()

    def _opened(self) -> RedisStreamsQueue:
        if self._queue is None:
            watch = self._watch
            if self._from_end:
                self._make_group_at_end()
                # If the group is lost later, it begins at the beginning: nothing must be missed then.
                self._from_end = False
            self._queue = self._hook.queue(watch.stream, watch.group, watch.consumer)
        return self._queue

    def _make_group_at_end(self) -> None:
        try:
            self._hook.get_conn().xgroup_create(self._watch.stream, self._watch.group, "$", mkstream=True)
        except RedisError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    def _refuse_company(self, queue: RedisStreamsQueue) -> None:
        us, is_first_pass = self._watch.consumer, self._next_pass == 0.0
        for consumer in queue.backlog_stats().consumers:
            is_there = consumer.name != us and consumer.idle_ms < _GONE_MS
            # Two that began at the same moment see each other later: one of them must stay.
            if is_there and (is_first_pass or consumer.name < us):
                raise GroupTakenError(
                    stream=self._watch.stream, group=self._watch.group, consumer=consumer.name
                )

    def _pending(self, queue: RedisStreamsQueue) -> list[QueueMessage]:
        found: list[QueueMessage] = []
        own_after: str | None = None
        stale_after: str | None = None
        for _ in range(_MAX_PAGES):
            delivery, own_after = queue.own_page(_PAGE, after=own_after)
            found += delivery.messages
            self._quarantine_malformed(queue, delivery.malformed)
            if own_after is None:
                break
        for _ in range(_MAX_PAGES):
            delivery, stale_after = queue.claim_page(self._watch.take_over_ms, _PAGE, after=stale_after)
            found += delivery.messages
            self._quarantine_malformed(queue, delivery.malformed)
            if stale_after is None:
                break
        return found

    def _quarantine_malformed(self, queue: RedisStreamsQueue, entries: Sequence[MalformedEntry]) -> None:
        for entry in entries:
            quarantine(queue, entry, reason=entry.reason)
            facts = (entry.id, self._watch.stream, entry.reason)
            place = {"stream": self._watch.stream, "group": self._watch.group, "message_id": entry.id}
            told = message_fields(**place, consumer=self._watch.consumer)
            log.warning("entry %s of %s is no message: %s", *facts, extra=told)
