"""Where a drain's messages come from, batch by batch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from conquiet.arguments import check_non_negative_int, check_positive_int
from conquiet.errors import MalformedEntryError
from conquiet.queue import RedisStreamsQueue
from conquiet.queue.message import Delivery


class Source(Protocol):
    """Delivers batches until there is nothing more to deliver."""

    def next_batch(self, acks: Sequence[str], size: int, wait_ms: int | None) -> Delivery | None:
        """Ack, then deliver up to `size` messages, maybe none yet; `None` at the end.

        `wait_ms` shortens the source's own waiting.
        """


class LeftBehind:
    """What consumers that are known to be dead have pending, oldest first of each; then their names go."""

    def __init__(self, queue: RedisStreamsQueue, consumers: Sequence[str]) -> None:
        own = queue.config.consumer_name
        if isinstance(consumers, str) or own in consumers:
            raise ValueError(
                f"take_back_from must be names of other consumers than {own!r}, got {consumers!r}"
            )
        self._queue = queue
        self._consumers = deque(consumers)
        self._after: str | None = None

    def next_batch(self, acks: Sequence[str], size: int, wait_ms: int | None) -> Delivery | None:
        """As `Source.next_batch`; it never waits."""
        self._queue.ack_ids(acks)
        while self._consumers:
            delivery, self._after = self._queue.take_page(self._consumers[0], size, after=self._after)
            if self._after is not None:
                return delivery
            self._queue.remove_consumer(self._consumers.popleft())
        return None


class OwnMessages:
    """What the consumer's own name has pending, oldest first, each once."""

    def __init__(self, queue: RedisStreamsQueue) -> None:
        self._queue = queue
        self._after: str | None = None

    def next_batch(self, acks: Sequence[str], size: int, wait_ms: int | None) -> Delivery | None:
        """As `Source.next_batch`; it never waits."""
        self._queue.ack_ids(acks)
        delivery, self._after = self._queue.own_page(size, after=self._after)
        return None if self._after is None else delivery


class NewMessages:
    """New messages until the stream is idle."""

    def __init__(self, queue: RedisStreamsQueue, *, idle_ms: int) -> None:
        check_positive_int("idle_ms", idle_ms)
        self._queue = queue
        self._idle_ms = idle_ms
        self._idle_since: float | None = None

    def next_batch(self, acks: Sequence[str], size: int, wait_ms: int | None) -> Delivery | None:
        """As `Source.next_batch`."""
        started = time.monotonic()
        delivery = self._read(acks, size, self._idle_ms if wait_ms is None else min(wait_ms, self._idle_ms))
        return delivery if self._is_flowing(delivery, started) else None

    def _read(self, acks: Sequence[str], size: int, block_ms: int) -> Delivery:
        try:
            return Delivery(self._queue.ack_and_read(acks, block_ms, size), [])
        except MalformedEntryError as error:
            return Delivery(list(error.messages), list(error.entries))

    def _is_flowing(self, delivery: Delivery, started: float) -> bool:
        # A read may end before `idle_ms`, by the client's socket timeout: the silence is measured over reads.
        if delivery.messages or delivery.malformed:
            self._idle_since = None
            return True
        self._idle_since = started if self._idle_since is None else self._idle_since
        return (time.monotonic() - self._idle_since) * 1000 < self._idle_ms


class StaleMessages:
    """Messages of any consumer that nobody has touched for a time, each at most once."""

    def __init__(self, queue: RedisStreamsQueue, min_idle_ms: int) -> None:
        check_non_negative_int("min_idle_ms", min_idle_ms)
        self._queue = queue
        self._min_idle_ms = min_idle_ms
        self._after: str | None = None

    def next_batch(self, acks: Sequence[str], size: int, wait_ms: int | None) -> Delivery | None:
        """As `Source.next_batch`; it never waits."""
        self._queue.ack_ids(acks)
        delivery, self._after = self._queue.claim_page(self._min_idle_ms, size, after=self._after)
        return None if self._after is None else delivery


class InTurn:
    """Sources one after the other."""

    def __init__(self, *sources: Source) -> None:
        self._sources = deque(sources)

    def next_batch(self, acks: Sequence[str], size: int, wait_ms: int | None) -> Delivery | None:
        """As `Source.next_batch`."""
        while self._sources:
            delivery = self._sources[0].next_batch(acks, size, wait_ms)
            if delivery is not None:
                return delivery
            # It has acked before it found that there is nothing more.
            acks = ()
            self._sources.popleft()
        return None
