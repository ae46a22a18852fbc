"""DueRetries: when the owner of a partition looks for retries that are due."""

from __future__ import annotations

import time

from conquiet.mq.own.partition import Due, LeasedPartition
from conquiet.mq.own.take_overs import log_vanished


class DueRetries:
    """Takes entries whose retry is due, in turn with new messages; lives as long as the lease, one thread."""

    def __init__(self, partition: LeasedPartition) -> None:
        self._partition = partition
        #: Monotonic time at which one may be due.
        self.next_at = 0.0
        #: Retries that fail quickly must not keep new messages waiting.
        self.have_had_their_turn = False

    @property
    def are_due(self) -> bool:
        """Whether it is time to look."""
        return not self.have_had_their_turn and time.monotonic() >= self.next_at

    def take(self, size: int, max_bytes: int) -> Due:
        """Take at most so many, no further one after so many bytes."""
        due = self._partition.take_due(size, max_bytes=max_bytes)
        log_vanished(self._partition, due.vanished, due.unknown)
        # Nobody else schedules retries in an owned partition; an administrator may.
        until_due_s = 1.0 if due.next_due_ms is None else due.next_due_ms / 1000
        self.next_at = time.monotonic() + min(1.0, until_due_s)
        return due

    def scheduled(self, delay_ms: int) -> None:
        """A retry was settled: not before, as a look at the waiting set in between would find nothing due."""
        self.next_at = min(self.next_at, time.monotonic() + delay_ms / 1000)
