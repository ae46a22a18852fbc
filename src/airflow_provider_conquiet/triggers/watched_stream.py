"""WatchedStream: the messages of one stream for one watcher, which reads its group alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from conquiet import ConquietError, DeadLetter, MalformedEntryError, QueueMessage, RedisStreamsQueue
from conquiet.consume.outcome import Settlement
from conquiet.consume.stream_channel import StreamChannel
from conquiet.logs import MessageLog, message_fields
from conquiet.queue.config import CLAIM_IDLE_MS
from conquiet.queue.scripts import create_group

log = MessageLog(logging.getLogger(__name__))

#: Short, so that acks, which share the thread, do not wait long.
_BLOCK_MS = 500
#: A consumer that reads is seen by the server twice a second; one that was not seen for this long is dead.
_DEAD_AFTER_MS = 10_000


class GroupTakenError(ConquietError):
    """Another consumer reads the watcher's group: each would get a part of the messages."""

    def __init__(self, *, stream: str, group: str, consumer: str) -> None:
        super().__init__(
            f"group {group!r} of stream {stream!r} is being read by consumer {consumer!r}; "
            "give this watcher a group of its own"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Which messages, from where, and how often pending ones are read again."""

    redis_streams_conn_id: str
    stream: str
    group: str
    #: The same after a restart of the triggerer: what was pending is found under it again.
    consumer: str
    #: Whether a group that does not exist yet begins at the end of the stream instead of at its beginning.
    from_end: bool = False
    #: How often pending messages are read again whose event was not stored.
    reread_s: float = 30.0
    #: What another consumer left pending for this long is taken over: this watcher had other arguments once.
    take_over_ms: int = CLAIM_IDLE_MS


class WatchedStream:
    """Takes messages and settles them; every call blocks and belongs into one thread.

    Malformed entries become dead letters as they are read. After an error `close()` it: the next call opens
    it again and begins with what is pending.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._hook = RedisStreamsHook(watch.redis_streams_conn_id)
        self._queue: RedisStreamsQueue | None = None
        self._from_end = watch.from_end
        #: A pass over pending messages, from one call to the next, and when the next one begins.
        self._pass: StreamChannel | None = None
        self._next_pass = 0.0

    def take(self, count: int) -> list[QueueMessage]:
        """Pending messages when it is their time, else up to `count` new ones; waits a moment for them.

        Of large messages fewer come.
        """
        queue = self._opened()
        if self._pass is None and time.monotonic() >= self._next_pass:
            self._check_is_alone(queue)
            self._pass = self._channel(queue)
        if self._pass is not None:
            pending = self._take_pending(self._pass, count)
            if pending:
                return pending
            self._pass, self._next_pass = None, time.monotonic() + self._watch.reread_s
        try:
            return queue.ack_and_read((), _BLOCK_MS, count)
        except MalformedEntryError as error:
            channel = self._channel(queue)
            for entry in error.entries:
                self._dead_letter(channel, channel.decide_malformed(entry), entry.reason)
            return list(error.messages)

    def ack(self, entry_ids: Sequence[str]) -> None:
        """Settle messages whose events are stored."""
        self._opened().ack_ids(entry_ids)

    def dead_letter(self, msg: QueueMessage, reason: str) -> None:
        """Settle a message that was refused; if it is another consumer's by now, it stays pending."""
        channel = self._channel(self._opened())
        self._dead_letter(channel, channel.decide(msg, DeadLetter(reason), 0.0), reason)

    def close(self) -> None:
        """Close the client; what is pending stays pending."""
        self._queue = self._pass = None
        self._next_pass = 0.0
        self._hook.close()

    def _opened(self) -> RedisStreamsQueue:
        if self._queue is None:
            watch = self._watch
            if self._from_end:
                create_group(self._hook.get_conn(), watch.stream, watch.group, after="$")
                # If the group is deleted later, it begins at the beginning: nothing must be missed then.
                self._from_end = False
            self._queue = self._hook.queue(watch.stream, watch.group, watch.consumer)
        return self._queue

    def _check_is_alone(self, queue: RedisStreamsQueue) -> None:
        watch, is_first_pass = self._watch, self._next_pass == 0.0
        for consumer in queue.backlog_stats().consumers:
            is_alive = consumer.name != watch.consumer and consumer.idle_ms < _DEAD_AFTER_MS
            # Two that began at the same moment see each other later: one of them must stay.
            if is_alive and (is_first_pass or consumer.name < watch.consumer):
                raise GroupTakenError(stream=watch.stream, group=watch.group, consumer=consumer.name)

    def _take_pending(self, channel: StreamChannel, count: int) -> list[QueueMessage]:
        """The next page that has messages; none at the end of the pass."""
        while (delivery := channel.read((), count, None)) is not None:
            for entry in delivery.malformed:
                self._dead_letter(channel, channel.decide_malformed(entry), entry.reason)
            if delivery.messages:
                return delivery.messages
        return []

    def _channel(self, queue: RedisStreamsQueue) -> StreamChannel:
        """What is pending at this watcher, then what others left; malformed entries are given up at once."""
        pages = [
            lambda count, after: queue.own_page(count, after=after),
            lambda count, after: queue.claim_page(self._watch.take_over_ms, count, after=after),
        ]
        return StreamChannel(queue, pages, max_deliveries=0)

    def _dead_letter(self, channel: StreamChannel, settlement: Settlement, reason: str) -> None:
        channel.settle([settlement])
        if not settlement.is_refused:
            watch = self._watch
            names = {"stream": watch.stream, "group": watch.group, "consumer": watch.consumer}
            extra = message_fields(**names, message_id=settlement.entry_id)
            facts = (settlement.entry_id, watch.stream, reason)
            log.warning("entry %s of %s is a dead letter now: %s", *facts, extra=extra)
