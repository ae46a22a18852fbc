"""drain_topic: drain every partition of a topic, until nothing is left or a limit is reached."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Engine

from conquiet.consume.handler_kinds import new_handling
from conquiet.consume.handling import Handler
from conquiet.consume.limits import DrainLimits
from conquiet.consume.report import DrainReport, StopReason, sum_reports
from conquiet.db import Inbox
from conquiet.errors import PartitionBusyError
from conquiet.mq.clock import server_ms
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.drain import PartitionDrains, topic_to_drain
from conquiet.mq.send.delayed import copies_for, move_delayed
from conquiet.mq.topics import Topic, Topics

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: What must be left of a topic for its drain to go on, although nothing can be read now.
Until = Literal["idle", "settled", "empty"]

#: Messages of one partition before the others have their turn.
_TURN = 1_000
_LOOK_EVERY_S = 0.05


def drain_topic(
    topic: Topic | str,
    group: str,
    handler: Handler,
    engine: Engine | AsyncEngine | None = None,
    limits: DrainLimits | None = None,
    *,
    inbox: Inbox | bool | None = None,
    config: ConsumerConfig | None = None,
    until: Until = "idle",
) -> DrainReport:
    """Drain all partitions, each as `drain_partition` does, in turn and in the calling thread.

    With `config.max_partitions` so many at once, each in a thread of its own; a failure that ends the drain
    lets the messages that are in handlers end. The limits, and the report, are of all partitions together. A
    partition that another consumer owns is tried again in every round; if it is still not free in the end,
    the report has it as `busy`.

    Args:
        until: what ends it, besides the limits. "idle": there was nothing to read for `idle_ms`. "settled":
            and no message of the group waits for its retry. "empty": and no delayed one waits to be added.

    Raises:
        LeaseLostError: a lease was lost meanwhile; what was not settled is handled again by its new owner.

    Examples:
        >>> report = drain_topic(topic, "couriers", ship, engine, DrainLimits(idle_ms=50), inbox=True)
        >>> report.failed
        0
    """
    topic = topic_to_drain(topic)
    if until not in ("idle", "settled", "empty"):
        raise ValueError(f"until must be 'idle', 'settled' or 'empty', got {until!r}")
    config = ConsumerConfig.of(config)
    drains = PartitionDrains(topic, group, handler, engine, inbox=inbox, config=config)
    limits = drains.checked(limits)
    left = _Left(topic, group, config, until)
    # Of an AsyncEngine the event loop, and its connections, are kept from visit to visit.
    with new_handling(handler, engine) as handling:
        _ = handling.event_loop
        drains.prepare()
        return _Rounds(left, limits, drains, parallel=config.max_partitions or 1).run()


class _Left:
    """What of a topic is still to be drained for one group; read-only, but that it adds what is due."""

    def __init__(self, topic: Topic, group: str, config: ConsumerConfig, until: Until) -> None:
        self.topic = topic
        self.group = group
        self._until = until
        self._has_copies = config.retry_mode == "requeue"

    def look(self) -> None:
        """See the topic as it is now, with delayed messages that are due added to it."""
        self.topic = Topics(self.topic.client).open_again(self.topic)
        move_delayed(self.topic)

    def is_ready(self, partition: int) -> bool:
        """Whether there is something to read: an undelivered message, or a retry that is due."""
        keys, last = self.topic.keys, "0-0"
        for info in self.topic.call("XINFO GROUPS", keys.stream(partition)):
            if info["name"] == self.group.encode():
                last = info["last-delivered-id"].decode()
        command = ("XRANGE", keys.stream(partition), f"({last}", "+", "COUNT", 1)
        return bool(self.topic.call(*command)) or self._has_any(
            keys.waiting(self.group, partition), server_ms(self.topic)
        )

    @property
    def is_awaited(self) -> bool:
        """Whether something will come that the drain is to wait for."""
        topic, group, partitions = self.topic, self.group, self.topic.partitions
        if self._until == "idle":
            return False
        if any(self._has_any(topic.keys.waiting(group, partition)) for partition in partitions):
            return True
        if self._until == "empty":
            return any(self._has_any(topic.keys.delayed(partition)) for partition in partitions)
        return self._has_copies and bool(copies_for(topic, group))

    def _has_any(self, key: str, until_ms: int | str = "+inf") -> bool:
        return bool(self.topic.call("ZRANGEBYSCORE", key, "-inf", until_ms, "LIMIT", 0, 1))


class _Rounds:
    """Visits the partitions in turn, or several at once; lives as long as one drain."""

    def __init__(self, left: _Left, limits: DrainLimits, drains: PartitionDrains, *, parallel: int) -> None:
        self._left = left
        self._limits = limits
        self._drains = drains
        self._parallel = parallel
        self._started = time.monotonic()
        #: Of all visits so far.
        self._whole = DrainReport(stream=left.topic.name, group=left.group, topic=left.topic.name)
        self._is_stopped = False
        #: A visit has raised, or the calling thread was interrupted: the others stop between two messages.
        self._is_aborted = False
        #: Partitions that were never drained: their earlier owners may have left something.
        self._unseen = set(left.topic.partitions)
        self._busy: set[int] = set()
        #: What the limits still allow and visits that run may use.
        self._reserved_messages = 0
        self._reserved_failures = 0
        self._lock = threading.Lock()

    def run(self) -> DrainReport:
        """Until a limit is reached, or nothing is left."""
        idle_since: float | None = None
        while (reason := self._reason_to_stop()) is None:
            # Before the visits: what was awaited then may be ready in a partition that was visited.
            is_awaited = self._left.is_awaited
            self._left.look()
            self._drains.check_ends(self._left.topic)
            begun = time.monotonic()
            if self._visit_all() or self._reason_to_stop() is not None:
                idle_since = None
                continue
            idle_since = begun if idle_since is None else idle_since
            idle_ms = (time.monotonic() - idle_since) * 1000
            is_idle = self._limits.idle_ms is not None and idle_ms >= self._limits.idle_ms
            if is_idle and not is_awaited:
                return self._report("idle")
            time.sleep(_LOOK_EVERY_S)
        return self._report(reason)

    def _visit_all(self) -> bool:
        """Drain what is ready, each partition once; whether there may be more."""
        partitions = self._left.topic.partitions
        try:
            if self._parallel == 1:
                visited = [self._visit(partition) for partition in partitions]
                return any(visited)
            with ThreadPoolExecutor(self._parallel, "conquiet-partition") as threads:
                visits = [threads.submit(self._visit, partition) for partition in partitions]
                try:
                    visited = [visit.result() for visit in visits]
                except BaseException:
                    # Before the end of the block, which waits for the others.
                    self._is_aborted = True
                    raise
                return any(visited)
        except BaseException as error:
            # A user's exception class may refuse attributes; it must leave all the same.
            with suppress(Exception):
                error.drain_report = self._report("error")  # type: ignore[attr-defined]  # of all of them
            raise

    def _visit(self, partition: int) -> bool:
        if self._reason_to_stop() is not None:
            return False
        if partition not in self._unseen and not self._left.is_ready(partition):
            return False
        limits = self._reserve()
        if limits is None:
            # The others have all that the limits allow; what they do not use is for the next round.
            return True
        report: DrainReport | None = None
        try:
            with self._drains.loop_over(self._left.topic, partition, limits) as loop:
                report = loop.run()
        except PartitionBusyError:
            self._busy.add(partition)
            return False
        except BaseException as error:
            report = getattr(error, "drain_report", None)
            self._is_aborted = True
            raise
        finally:
            with self._lock:
                self._reserved_messages -= limits.max_messages or 0
                self._reserved_failures -= limits.max_failures or 0
                if report is not None:
                    self._whole = sum_reports(self._whole, [self._whole, report])
        self._busy.discard(partition)
        # What it read and has not begun is handed back, and looks as if it had been delivered.
        if report.stopped_by == "max_failures":
            self._unseen.add(partition)
        else:
            self._unseen.discard(partition)
        self._is_stopped = self._is_stopped or report.stopped_by == "stop"
        # What was handed back, as a later version's message, is read in every visit.
        return report.read > report.handed_back

    def _reserve(self) -> DrainLimits | None:
        """The part of the limits that one visit may use; `None` if there is none now."""
        limits, seconds = self._limits, None
        if limits.max_duration_s is not None:
            seconds = max(0.001, limits.max_duration_s - (time.monotonic() - self._started))
        with self._lock:
            messages, failures = _TURN, None
            if limits.max_messages is not None:
                left = limits.max_messages - self._taken - self._reserved_messages
                messages = min(_TURN, -(-left // self._parallel))
            if limits.max_failures is not None:
                left = limits.max_failures - self._failed - self._reserved_failures
                failures = -(-left // self._parallel)
            if messages < 1 or (failures is not None and failures < 1):
                return None
            self._reserved_messages += messages
            self._reserved_failures += failures or 0
        return replace(
            limits,
            max_messages=messages,
            max_failures=failures,
            max_duration_s=seconds,
            idle_ms=1,
            should_stop=self._should_stop,
        )

    def _should_stop(self) -> bool:
        return self._is_aborted or (self._limits.should_stop is not None and self._limits.should_stop())

    @property
    def _taken(self) -> int:
        return self._whole.read - self._whole.handed_back

    @property
    def _failed(self) -> int:
        return self._whole.failed + self._whole.retried + self._whole.dead_lettered

    def _reason_to_stop(self) -> StopReason | None:
        limits = self._limits
        if self._is_stopped or self._should_stop():
            return "stop"
        if limits.max_failures is not None and self._failed >= limits.max_failures:
            return "max_failures"
        if limits.max_duration_s is not None and time.monotonic() - self._started >= limits.max_duration_s:
            return "max_duration"
        if limits.max_messages is not None and self._taken >= limits.max_messages:
            return "max_messages"
        return None

    def _report(self, stopped_by: StopReason) -> DrainReport:
        seconds = time.monotonic() - self._started
        return replace(self._whole, seconds=seconds, stopped_by=stopped_by, busy=tuple(sorted(self._busy)))
