"""StreamChannel: a plain stream as a channel; what fails stays pending, and may become a dead letter."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from conquiet.arguments import check_non_negative_int
from conquiet.consume.channel import KeyOf, described_entry
from conquiet.consume.dead_letter import (
    Cause,
    GivenUp,
    dead_letter_stream,
    malformed_content,
    message_content,
)
from conquiet.consume.limits import DrainLimits
from conquiet.consume.outcome import Ack, DeadLetter, Outcome, Retry, Settlement, Skipped
from conquiet.consume.presence import Presence
from conquiet.consume.report import Elsewhere
from conquiet.consume.scripts import dead_letter
from conquiet.errors import MalformedEntry, MalformedEntryError, MessageRejectedError
from conquiet.payload import decode_payload
from conquiet.queue import QueueConfig, QueueMessage, RedisStreamsQueue
from conquiet.queue.batch_size import FEW_MESSAGES
from conquiet.queue.connection import drains_key, visible_errors
from conquiet.queue.message import Delivery
from conquiet.queue.stream import HANDED_BACK_IDLE_MS
from conquiet.tracing import Where

_log = logging.getLogger(__name__)

#: One page of pending entries: up to so many, after an entry id; returns where to go on, `None` at the end.
Page = Callable[[int, str | None], tuple[Delivery, str | None]]


class StreamChannel:
    """One stream, one consumer; first pending messages, page by page, then maybe new ones."""

    max_outage_s = 0.0
    max_outages_of_message = 0
    is_shared = True
    can_settle = True
    #: The messages of a plain stream have none.
    key_of: KeyOf | None = None

    def __init__(
        self,
        queue: RedisStreamsQueue,
        pages: Sequence[Page],
        *,
        max_deliveries: int | None,
        presence: Presence | None = None,
        reads_new: bool = False,
    ) -> None:
        config = queue.config
        self._queue = queue
        self._presence = presence
        self._pages = deque(pages)
        self._after: str | None = None
        self._reads_new = reads_new
        self._max_deliveries = max_deliveries
        self._read_at = 0.0
        #: Messages that failed and stay pending.
        self._left = 0
        self._renew_after_s = config.claim_idle_ms / 2000
        self.stream = config.stream_key
        self.where = Where(
            destination=config.stream_key, group=config.consumer_group, consumer=config.consumer_name
        )
        self.claimed_by_others = 0
        self.elsewhere = Elsewhere()
        self.is_caught_up = False

    @classmethod
    def for_drain(
        cls, presence: Presence, limits: DrainLimits, take_over_from: Sequence[str]
    ) -> StreamChannel:
        """What the consumer has pending, what these others left, what was handed back, then new messages."""
        queue, own = presence.queue, presence.queue.config.consumer_name
        if isinstance(take_over_from, str) or own in take_over_from:
            raise ValueError(
                f"take_over_from must be names of other consumers than {own!r}, got {take_over_from!r}"
            )
        pages: list[Page] = [lambda count, after: queue.own_page(count, after=after)]
        # Its own first: what is taken over and fails is its own then, and must not come a second time.
        dead = presence.dead if limits.take_over_dead else []
        pages += [_pages_of(presence, consumer) for consumer in dict.fromkeys((*take_over_from, *dead))]
        pages.append(lambda count, after: queue.claim_page(HANDED_BACK_IDLE_MS, count, after=after))
        return cls(queue, pages, max_deliveries=limits.max_deliveries, presence=presence, reads_new=True)

    @classmethod
    def for_stale(cls, presence: Presence, limits: DrainLimits, min_idle_ms: int) -> StreamChannel:
        """Messages of any consumer that were idle for so long, each at most once; no new ones."""
        check_non_negative_int("min_idle_ms", min_idle_ms)
        queue = presence.queue
        page: Page = lambda count, after: queue.claim_page(min_idle_ms, count, after=after)  # noqa: E731
        return cls(queue, [page], max_deliveries=limits.max_deliveries, presence=presence)

    def read(self, settlements: Sequence[Settlement], size: int, wait_ms: int | None) -> Delivery | None:
        """As `Channel.read`; it waits for new messages only."""
        if self._pages:
            self.settle(settlements)
            settlements = ()
        while self._pages:
            # The first message alone, and then few: their last consumer may have died of too large a batch.
            count = min(size, FEW_MESSAGES) if self._read_at else 1
            delivery, self._after = self._pages[0](count, self._after)
            if self._after is not None:
                self._read_at = time.monotonic()
                return delivery
            self._pages.popleft()
        self.is_caught_up = True
        if not self._reads_new or any(settlement.kind == "dead_letter" for settlement in settlements):
            self.settle(settlements)
            settlements = ()
        if not self._reads_new:
            return None
        acks = [settlement.entry_id for settlement in settlements if settlement.kind == "ack"]
        self._queue.ends.check_if_due(self.stream)
        try:
            block_ms = self._queue.config.block_ms if wait_ms is None else wait_ms
            delivery = Delivery(self._queue.ack_and_read(acks, block_ms, size), [])
        except MalformedEntryError as error:
            delivery = Delivery(list(error.messages), list(error.entries))
        self._read_at = time.monotonic()
        if delivery.messages:
            self._queue.ends.seen(self.stream, delivery.messages[-1].id, delivery.messages[-1].data)
        return delivery

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """As `Channel.settle`; acks first, so that a dead letter that is refused does not keep them."""
        acks = [settlement for settlement in settlements if settlement.kind == "ack"]
        self._queue.ack_ids([settlement.entry_id for settlement in acks])
        for settlement in acks:
            settlement.is_done = True
        config, client = self._queue.config, self._queue.client
        for settlement in settlements:
            if settlement.kind == "dead_letter":
                with visible_errors("dead letter", stream=config.stream_key, group=config.consumer_group):
                    moved_to = dead_letter(
                        client,
                        config,
                        dead_letter_stream(config.stream_key),
                        entry_id=settlement.entry_id,
                        delivery_count=settlement.delivery_count,
                        letter=str(settlement.first),
                    )
                settlement.is_refused, settlement.is_done = moved_to is None, True

    def next_message(self, queued: deque[QueueMessage]) -> QueueMessage | None:
        # Others may claim what waits here; ask which ones are still pending at this consumer before that.
        if time.monotonic() - self._read_at >= self._renew_after_s:
            if self._presence is not None:
                self._presence.check()
            kept = self._queue.renew(list(queued))
            self.claimed_by_others += len(queued) - len(kept)
            queued.clear()
            queued.extend(kept)
            self._read_at = time.monotonic()
        return queued.popleft() if queued else None

    def set_aside(self, _msg: QueueMessage) -> None:
        """Nothing is kept back: later messages are handled before one that fails, too."""

    def take_back(self, msg: QueueMessage) -> Sequence[QueueMessage]:
        """The message alone."""
        return (msg,)

    def begin(self, _msg: QueueMessage) -> Settlement | None:
        """Nothing: Redis has counted the delivery when it was read."""
        return None

    def settlement_without_handler(self, msg: QueueMessage) -> Settlement | None:
        """A dead letter, if it was delivered more often than `max_deliveries`."""
        if self._max_deliveries is None or msg.delivery_count <= self._max_deliveries:
            return None
        cause = Cause(error_type="DeliveredTooOften", message=f"delivered {msg.delivery_count} times")
        return _dead_letter(self._queue.config, msg.id, msg.delivery_count, cause, message_content(msg))

    def decide(self, msg: QueueMessage, result: Outcome | Exception, _seconds: float) -> Settlement:
        """As `Channel.decide`: done, dead letter as the handler says, or pending as it is."""
        if isinstance(result, Ack):
            return Settlement("ack", msg.id, msg.delivery_count, outcome="handled")
        match result:
            case Skipped():
                return Settlement("ack", msg.id, msg.delivery_count, outcome="skipped")
            case DeadLetter(reason):
                cause = Cause(error_type="DeadLetter", message=reason)
                return _dead_letter(
                    self._queue.config, msg.id, msg.delivery_count, cause, message_content(msg)
                )
            case Retry():
                error: Exception = MessageRejectedError(msg.id, stream=self.stream, answer=result)
            case _:
                error = result
        self._left += 1
        return Settlement("leave", msg.id, msg.delivery_count, outcome="failed", error=error)

    def decide_malformed(self, entry: MalformedEntry) -> Settlement:
        """As `Channel.decide_malformed`: pending as it is, until it was delivered too often."""
        if self._max_deliveries is not None and entry.delivery_count > self._max_deliveries:
            return _dead_letter(self._queue.config, entry.id, entry.delivery_count, *malformed_content(entry))
        names = {"stream": self.stream, "group": self._queue.config.consumer_group}
        error = MalformedEntryError("drain", **names, entries=[entry], messages=())
        self._left += 1
        return Settlement("leave", entry.id, entry.delivery_count, outcome="failed", error=error)

    def hand_back(self, queued: Sequence[QueueMessage]) -> int:
        """As `Channel.hand_back`: pending with the delivery count of before, and the next claim's to take."""
        # Another drain of the same name has them now: they must not be free for a third one.
        is_lost = self._presence is not None and self._presence.is_lost
        given = 0 if is_lost else len(self._queue.hand_back(list(queued)))
        self.claimed_by_others += len(queued) - given
        if self._presence is not None:
            self.elsewhere = self._presence.leave(self._left + given)
            pending, idle_ms = self.elsewhere.pending, self.elsewhere.idle_ms
            if pending:
                is_stale = idle_ms >= self._queue.config.claim_idle_ms
                text = "%s entries of %s are pending at other consumers, the oldest for %.0f s"
                _log.log(logging.WARNING if is_stale else logging.INFO, text, pending, self, idle_ms / 1000)
        return given

    def as_delivered(self, msg: QueueMessage) -> QueueMessage:
        return replace(msg, payload=decode_payload(msg.data))

    def count_unavailable(self, messages: int) -> None:
        """No metric: the drain ends with the error."""

    def described(self, delivered: QueueMessage | MalformedEntry) -> tuple[str, int]:
        """As `Channel.described`."""
        return described_entry(delivered, self)

    def __str__(self) -> str:
        return f"stream {self.stream!r} for group {self._queue.config.consumer_group!r}"


def _dead_letter(
    config: QueueConfig, entry_id: str, delivery_count: int, cause: Cause, content: dict[str, Any]
) -> Settlement:
    given_up = GivenUp(
        topic=config.stream_key,
        group=config.consumer_group,
        original_id=entry_id,
        attempts=delivery_count,
        consumer=config.consumer_name,
        now_ms=time.time_ns() // 1_000_000,
    )
    letter = given_up.letter(cause, content)
    reason = f"{cause.error_type}: {cause.message}"
    return Settlement("dead_letter", entry_id, delivery_count, letter, outcome="dead_lettered", reason=reason)


def _pages_of(presence: Presence, consumer: str) -> Page:
    def page(count: int, after: str | None) -> tuple[Delivery, str | None]:
        # Of one that is dead by its heartbeat: it may have begun again meanwhile.
        config = presence.queue.config
        key = drains_key(config.stream_key, config.consumer_group)
        drains = key if consumer in presence.dead else None
        delivery, last = presence.queue.take_page(consumer, count, after=after, drains=drains)
        if last is None:
            presence.forget(consumer)
        return delivery, last

    return page
