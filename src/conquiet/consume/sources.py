"""Where a drain's messages come from, batch by batch."""

from __future__ import annotations

import time
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


class NewMessages:
    """What the consumer's name already has pending, oldest first; then new messages until idle."""

    def __init__(self, queue: RedisStreamsQueue, *, idle_ms: int) -> None:
        check_positive_int("idle_ms", idle_ms)
        self._queue = queue
        self._idle_ms = idle_ms
        self._own_after: str | None = None
        self._has_own = True
        self._idle_since: float | None = None

    def next_batch(self, acks: Sequence[str], size: int, wait_ms: int | None) -> Delivery | None:
        """As `Source.next_batch`."""
        if self._has_own:
            self._queue.ack_ids(acks)
            delivery, self._own_after = self._queue.own_page(size, after=self._own_after)
            if self._own_after is not None:
                return delivery
            self._has_own, acks = False, ()
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
