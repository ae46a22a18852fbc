"""TakeOvers: the owner of a partition takes what is pending at others, at first and then on a schedule."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from conquiet.logs import MessageLog
from conquiet.mq.metrics import emit
from conquiet.mq.own.partition import LeasedPartition, TakeOver

_log = MessageLog(logging.getLogger(__name__))


class TakeOvers:
    """First all that is pending; later, again and again, what nobody has touched for `claim_idle_ms`.

    The latter are orphans: left by readers without a lease, or given to the owner's name by hand. Lives as
    long as the lease; one thread.
    """

    def __init__(self, partition: LeasedPartition, claim_idle_ms: int) -> None:
        self._partition = partition
        self._claim_idle_ms = claim_idle_ms
        #: `None` for all.
        self._min_idle_ms: int | None = None
        self._after: str | None = None
        #: Monotonic time of the next take-over.
        self.next_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether a take-over is to begin or to go on."""
        return time.monotonic() >= self.next_at

    @property
    def has_more(self) -> bool:
        """Whether a take-over has begun and not ended."""
        return self._after is not None

    def take_page(self, size: int, in_flight: Iterable[str], max_bytes: int) -> TakeOver:
        """Take the next page of at most so many messages, but what is in flight."""
        page = self._partition.take_over(self._after, size, self._min_idle_ms, in_flight, max_bytes=max_bytes)
        log_vanished(self._partition, page.vanished)
        taken = len(page.batch.messages) + len(page.batch.malformed)
        if taken and self._min_idle_ms is not None:
            _log.warning(
                "%d entries of %s were pending and nobody's, idle for %d ms or longer: taken over",
                *(taken, self._partition, self._min_idle_ms),
                extra=self._partition.extra(),
            )
        self._after = page.after
        if page.after is None:
            self._min_idle_ms = self._claim_idle_ms
            self.next_at = time.monotonic() + self._claim_idle_ms / 4000
        return page


def log_vanished(partition: LeasedPartition, entry_ids: Sequence[str], unknown: Sequence[str] = ()) -> None:
    """Log and count entries that were pending, and were acked by others or removed from the stream."""
    if unknown:
        text = "the waiting set of %s has what is no entry's id, which is left there: %s"
        _log.warning(text, partition, unknown, extra=partition.extra())
    if entry_ids:
        emit("conquiet_mq_vanished_total", len(entry_ids), *partition.labels)
        _log.error(
            "%d pending entries of %s were acked by others or are no longer in the stream: %s",
            *(len(entry_ids), partition, entry_ids),
            extra=partition.extra(message_id=entry_ids[0] if len(entry_ids) == 1 else None),
        )
