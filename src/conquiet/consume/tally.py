"""Tally: what a drain has done so far, and whether a limit ends it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from traceback import clear_frames
from typing import Any

from conquiet.consume.channel import Batch, Channel
from conquiet.consume.limits import DrainLimits
from conquiet.consume.outcome import Settlement
from conquiet.consume.report import COUNTS, MAX_FAILURES, DrainReport, StopReason
from conquiet.errors import DrainError, DrainFailure, causes_of
from conquiet.queue.message import entry_id_order


class Tally:
    """The counts of one drain, and how far it is from its limits."""

    def __init__(self, limits: DrainLimits, *, keeps_failures: bool = True) -> None:
        self._limits = limits
        # A consumer that runs for weeks must not keep the tracebacks of its messages.
        self._keeps_failures = keeps_failures
        self._started = time.monotonic()
        self._idle_since: float | None = None
        self._counts: Counter[str] = Counter()
        #: Messages begun, or given up without their handler.
        self.taken = 0
        self.failures: list[DrainFailure] = []
        #: Whether failed messages are still pending as they are.
        self.has_left_pending = False
        #: Of the first and of the last read that delivered anything; put in order only for the report.
        self._first_ids: list[str] = []
        self._last_ids: list[str] = []

    def reason_to_stop(self, failed_attempts: int) -> StopReason | None:
        """The limit that is reached, if one is."""
        limits = self._limits
        if limits.should_stop is not None and limits.should_stop():
            return "stop"
        if limits.max_failures is not None and failed_attempts >= limits.max_failures:
            return "max_failures"
        if limits.max_duration_s is not None and time.monotonic() - self._started >= limits.max_duration_s:
            return "max_duration"
        if limits.max_messages is not None and self.taken >= limits.max_messages:
            return "max_messages"
        if self._idle_since is None or limits.idle_ms is None:
            return None
        return "idle" if (time.monotonic() - self._idle_since) * 1000 >= limits.idle_ms else None

    def most_to_take(self, size: int, in_flight: int = 0) -> int:
        """As many of them as the limit of messages allows beside those that are in handlers."""
        most = self._limits.max_messages
        return size if most is None else min(size, most - self.taken - in_flight)

    def longest_wait_ms(self, now: float) -> int | None:
        """How long a read may wait until a limit is reached; `None` without such a limit."""
        limits, waits = self._limits, []
        if limits.idle_ms is not None:
            waited_s = 0.0 if self._idle_since is None else now - self._idle_since
            waits.append(limits.idle_ms - waited_s * 1000)
        if limits.max_duration_s is not None:
            waits.append((self._started + limits.max_duration_s - now) * 1000)
        return max(1, int(min(waits))) if waits else None

    def read(self, batch: Batch[Any], started: float, *, is_caught_up: bool) -> int:
        """A read that began then has delivered these; returns how many they are."""
        ids = [msg.id for msg in batch.messages] + [entry.id for entry in batch.malformed]
        if not ids and is_caught_up and self._idle_since is None:
            self._idle_since = started
        elif ids:
            self._idle_since = None
            self._first_ids = self._first_ids or ids
            self._last_ids = ids
        return len(ids)

    def decided(self, settlement: Settlement) -> None:
        """This will become of a message or of a malformed entry."""
        self._counts[settlement.outcome] += 1
        if settlement.error is None or not self._keeps_failures:
            return
        is_left = settlement.kind == "leave"
        self.has_left_pending = self.has_left_pending or is_left
        if is_left or len(self.failures) < MAX_FAILURES:
            self.failures.append(DrainFailure(settlement.entry_id, settlement.error))

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """These are done; an error that the report keeps must not keep its message, which may be large."""
        if self._limits.on_error == "continue":
            for settlement in settlements:
                if settlement.error is not None:
                    _forget_variables(settlement.error)

    def refused(self, settlement: Settlement) -> None:
        """It was another consumer's by then."""
        if settlement.kind != "begin":
            self._counts[settlement.outcome] -= 1
        self._counts["claimed_by_others"] += 1

    def unsettled(self, settlement: Settlement) -> None:
        """If it could not be settled: what was committed is handled all the same, others stay pending."""
        if not settlement.is_done and settlement.kind in ("retry", "requeue", "dead_letter"):
            self._counts[settlement.outcome] -= 1
            self._counts["failed"] += 1

    def left_pending(self, messages: int) -> None:
        """Messages were begun, and nothing was decided: as when their lease was lost."""
        self._counts["failed"] += messages

    def handed_back(self, count: int) -> None:
        """So many were freed for others."""
        self._counts["handed_back"] += count

    def error(self, report: DrainReport) -> DrainError:
        """What says that messages failed and are still pending."""
        return DrainError(stream=report.stream, group=report.group, report=report, failures=self.failures)

    def report(self, channel: Channel[Any], stopped_by: StopReason, unfinished: int) -> DrainReport:
        """What has been done; after an error some messages may be neither settled nor handed back."""
        counts: Counter[str] = self._counts + Counter(claimed_by_others=channel.claimed_by_others)
        # Not as it is read: a topic may deliver one message twice in a drain, first and as its own retry.
        counts["read"] = counts.total() + unfinished
        named: dict[str, Any] = {name: counts[name] for name in COUNTS}
        where, elsewhere = channel.where, channel.elsewhere
        return DrainReport(
            stream=channel.stream,
            group=where.group or "",
            topic=None if where.partition is None else where.destination,
            partition=where.partition,
            pending_elsewhere=elsewhere.pending,
            elsewhere_idle_ms=elsewhere.idle_ms,
            first_id=min(self._first_ids, key=_order_of, default=None),
            last_id=max(self._last_ids, key=_order_of, default=None),
            seconds=time.monotonic() - self._started,
            stopped_by=stopped_by,
            failures=tuple(self.failures),
            **named,
        )


def _order_of(message_id: str) -> tuple[int, int]:
    try:
        return entry_id_order(message_id)
    except ValueError:
        # A task's id, which is what its producer made of it.
        return 0, 0


def _forget_variables(of_error: BaseException) -> None:
    """Forget what the frames of a traceback had in their variables, of all errors that led to this one."""
    for error in causes_of(of_error):
        clear_frames(error.__traceback__)
        frame = error.__traceback__ and error.__traceback__.tb_frame.f_back
        # Each frame keeps its callers: up to the loop, which runs.
        with suppress(RuntimeError):
            while frame is not None:
                frame.clear()
                frame = frame.f_back
