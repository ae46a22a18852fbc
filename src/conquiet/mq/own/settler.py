"""Settler: settles messages of a partition, and keeps what is known of them in step with that."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from conquiet.consume.outcome import Settlement
from conquiet.errors import LeaseLostError
from conquiet.logs import MessageLog
from conquiet.mq.own.entries import Batch
from conquiet.mq.own.metrics import PartitionMetrics
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.own.redeliveries import Redeliveries
from conquiet.mq.own.room import Room

_log = MessageLog(logging.getLogger(__name__))


class Settler:
    """That of one owned partition; only the thread that reads uses it."""

    def __init__(
        self,
        partition: LeasedPartition,
        metrics: PartitionMetrics,
        in_flight: dict[str, int],
        redeliveries: Redeliveries,
        room: Room,
    ) -> None:
        self._partition = partition
        self._metrics = metrics
        #: Entry id and delivery count of all that is read and not settled.
        self._in_flight = in_flight
        self._redeliveries = redeliveries
        self._room = room
        #: Whether something was settled, or nothing was found to read.
        self.has_worked = False

    def settle_and_read(self, settlements: Sequence[Settlement], size: int, max_bytes: int = 0) -> Batch:
        """Settle, then read up to so many new messages; mark what was refused."""
        self._metrics.flush()
        started = time.monotonic()
        try:
            effects, batch = self._partition.settle_and_read(settlements, size, max_bytes=max_bytes)
        except LeaseLostError:
            self._metrics.count("conquiet_mq_fenced_total", len(settlements))
            raise
        for settlement, has_effect in zip(settlements, effects, strict=True):
            settlement.is_refused, settlement.is_done = not has_effect, True
            entry_id = settlement.entry_id
            if settlement.kind == "begin" and has_effect:
                self._in_flight[entry_id] = settlement.delivery_count + 1
                continue
            self._in_flight.pop(entry_id, None)
            self._room.end(entry_id)
            if settlement.kind == "retry" and has_effect:
                self._redeliveries.retries.scheduled(int(settlement.first))
            elif settlement.kind == "retry":
                # It waits no more, so nothing else would open its key.
                self._redeliveries.freed += self._redeliveries.blocked.unblock(entry_id)
            self.has_worked = self.has_worked or has_effect
            if not has_effect:
                text, extra = "entry %s of %s was claimed by another consumer", self._partition.extra
                _log.warning(text, entry_id, self._partition, extra=extra(message_id=entry_id))
        self.has_worked = self.has_worked or (size > 0 and not batch)
        self._metrics.settled(settlements, time.monotonic() - started)
        self._metrics.count("conquiet_mq_in_flight", len(self._in_flight) + len(batch.messages))
        return batch
