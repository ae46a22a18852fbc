"""What a worker has handled and not settled yet: kept together, settled in one call, counted and observed."""

from __future__ import annotations

import logging
import time
from collections import Counter

from conquiet.errors import LeaseLostError
from conquiet.logs import MessageLog
from conquiet.mq.envelope import MqMessage
from conquiet.mq.metrics import emit, observe_all
from conquiet.mq.own.partition import Batch, LeasedPartition
from conquiet.mq.own.settlement import Settlement
from conquiet.tracing import active_traces

_log = MessageLog(logging.getLogger(__name__))

#: A handled message is settled within this time, or as soon as the handler that runs then has ended.
_SETTLE_WITHIN_S = 0.1

#: What a kind of settlement is called in traces, if it has another name there.
_OPERATIONS = {"dead": "dead_letter"}


class Settling:
    """The settlements of one owned partition; lives as long as its worker."""

    def __init__(self, partition: LeasedPartition) -> None:
        self._partition = partition
        self._labels = partition.labels
        self._noted: list[Settlement] = []
        self._noted_since = 0.0
        #: Handed to the handler and not yet counted.
        self._handled = 0
        #: Of handled messages, not yet observed: together they cost a third of what each by itself would.
        self._handle_seconds: list[float] = []
        self._end_to_end_seconds: list[float] = []
        #: Entry id and delivery count of all that is read and not settled; read by the thread that renews.
        self.in_flight: dict[str, int] = {}
        #: What has become of messages so far, by the kind of settlement.
        self.settled: Counter[str] = Counter()
        #: Whether something was settled, or nothing was found to read: the partition can be worked on.
        self.has_worked = False
        #: Monotonic time at which a retry may be due.
        self.next_due = 0.0

    def note(self, settlement: Settlement) -> None:
        """Settle it with the next call, and not much later than 0.1 s from now."""
        if not self._noted:
            self._noted_since = time.monotonic()
        self._noted.append(settlement)

    def count_handled(self) -> None:
        """A handler has ended, whatever came of it."""
        self._handled += 1

    def observe(self, msg: MqMessage, started: float, now_ms: int) -> None:
        """A handler that began at `started` (monotonic) has said how to settle its message."""
        self._handle_seconds.append(time.monotonic() - started)
        if msg.envelope.timestamp_ms:
            self._end_to_end_seconds.append(max(0, now_ms - msg.envelope.timestamp_ms) / 1000)

    def settle_if_late(self) -> None:
        """Settle if something has waited for its time."""
        if self._noted and time.monotonic() - self._noted_since > _SETTLE_WITHIN_S:
            self.settle()

    def settle(self, read: int = 0) -> Batch:
        """Settle what is noted, and read up to `read` new messages with the same call.

        Raises:
            LeaseLostError: nothing was settled.
            QueueError: Redis failed.
        """
        if not self._noted and not read:
            return Batch()
        self.observe_times()
        started, started_ns = time.monotonic(), time.time_ns()
        try:
            effects, batch = self._partition.settle_and_read(self._noted, read)
        except LeaseLostError as error:
            emit("conquiet_mq_fenced_total", len(self._noted), *self._labels)
            self._trace([False] * len(self._noted), started_ns, str(error))
            raise
        self._trace(effects, started_ns, "taken by another consumer before it was settled")
        if self._noted:
            emit("conquiet_mq_settle_seconds", time.monotonic() - started, *self._labels)
        settled = self._settled_by(effects)
        if settled or (read and not batch):
            self.has_worked = True
        emit("conquiet_mq_consumed_total", self._handled, *self._labels)
        self._handled = 0
        self._noted.clear()
        emit("conquiet_mq_in_flight", len(self.in_flight) + len(batch.messages), *self._labels)
        return batch

    def observe_times(self) -> None:
        """Observe the times of all messages since the last call."""
        observe_all("conquiet_mq_handle_seconds", self._handle_seconds, *self._labels)
        observe_all("conquiet_mq_end_to_end_seconds", self._end_to_end_seconds, *self._labels)
        self._handle_seconds.clear()
        self._end_to_end_seconds.clear()

    def _settled_by(self, effects: list[bool]) -> Counter[str]:
        settled: Counter[str] = Counter()
        for settlement, took_effect in zip(self._noted, effects, strict=True):
            if settlement.kind == "begin" and took_effect:
                self.in_flight[settlement.entry_id] = settlement.delivery_count + 1
                continue
            self.in_flight.pop(settlement.entry_id, None)
            if settlement.kind == "retry":
                # Not before it is settled: a look at the waiting set in between would find nothing due.
                self.next_due = min(self.next_due, time.monotonic() + int(settlement.first) / 1000)
            if took_effect:
                settled[settlement.kind] += 1
            else:
                self._tell_refused(settlement)
        for kind, number in settled.items():
            emit("conquiet_mq_settled_total", number, *self._labels, kind)
        self.settled += settled
        return settled

    def _tell_refused(self, settlement: Settlement) -> None:
        emit("conquiet_mq_fenced_total", 1, *self._labels)
        place = (settlement.entry_id, self._partition)
        told = self._partition.extra(message_id=settlement.entry_id, context=settlement.context)
        _log.warning("entry %s of %s was taken by another consumer before it was settled", *place, extra=told)

    def _trace(self, effects: list[bool], started_ns: int, refusal: str) -> None:
        traces = active_traces()
        if traces is None:
            return
        times = (started_ns, time.time_ns())
        for settlement, took_effect in zip(self._noted, effects, strict=True):
            if settlement.context is not None:
                traces.settled(
                    _OPERATIONS.get(settlement.kind, settlement.kind),
                    self._partition.where,
                    settlement.entry_id,
                    settlement.context,
                    times=times,
                    error=None if took_effect else refusal,
                )
