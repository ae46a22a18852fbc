"""drain_topic: drain every partition of a topic, until nothing is left or a limit is reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Engine

from conquiet.consume.handler_kinds import new_handling
from conquiet.consume.handling import Handler
from conquiet.consume.limits import DrainLimits, check_limits
from conquiet.consume.report import DrainReport, StopReason, sum_reports
from conquiet.db import Inbox
from conquiet.errors import PartitionBusyError
from conquiet.mq.clock import server_ms
from conquiet.mq.own.config import ConsumerConfig
from conquiet.mq.own.drain import drain_partition, topic_to_drain
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
    payload: Any = None,
) -> DrainReport:
    """Drain all partitions, in turn and in the calling thread, each as `drain_partition` does.

    The limits, and the report, are of all partitions together. A partition that another consumer owns is
    tried again in every round; if it is still not free in the end, the report has it as `busy`.

    Args:
        until: what ends it, besides the limits. "idle": there was nothing to read for `idle_ms`. "settled":
            and no message of the group waits for its retry. "empty": and no delayed one waits to be added.

    Raises:
        LeaseLostError: a lease was lost meanwhile; what was not settled is handled again by its new owner.
    """
    topic = topic_to_drain(topic)
    if until not in ("idle", "settled", "empty"):
        raise ValueError(f"until must be 'idle', 'settled' or 'empty', got {until!r}")
    config = ConsumerConfig.of(config)
    limits = config.drain_limits() if limits is None else limits
    check_limits(limits)
    how: dict[str, Any] = {"handler": handler, "engine": engine, "inbox": inbox, "config": config}
    left = _Left(topic, group, config, until)
    drain_one = partial(drain_partition, group=group, payload=payload, **how)
    # Of an AsyncEngine the event loop, and its connections, are kept from visit to visit.
    with new_handling(handler, engine) as handling:
        _ = handling.event_loop
        return _Rounds(left, limits, drain_one).run()


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
    """Visits the partitions in turn; lives as long as one drain."""

    def __init__(self, left: _Left, limits: DrainLimits, drain_one: Callable[..., DrainReport]) -> None:
        self._left = left
        self._limits = limits
        self._drain_one = drain_one
        self._started = time.monotonic()
        #: Of all visits so far.
        self._whole = DrainReport(stream=left.topic.name, group=left.group, topic=left.topic.name)
        self._is_stopped = False
        #: Partitions that were never drained: their earlier owners may have left something.
        self._unseen = set(left.topic.partitions)
        self._busy: set[int] = set()

    def run(self) -> DrainReport:
        """Until a limit is reached, or nothing is left."""
        idle_since: float | None = None
        while (reason := self._reason_to_stop()) is None:
            # Before the visits: what was awaited then may be ready in a partition that was visited.
            is_awaited = self._left.is_awaited
            self._left.look()
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
        """Drain what is ready, each partition once; whether anything was read."""
        has_read = False
        for partition in self._left.topic.partitions:
            if self._reason_to_stop() is not None:
                break
            if partition in self._unseen or self._left.is_ready(partition):
                has_read = self._visit(partition) or has_read
        return has_read

    def _visit(self, partition: int) -> bool:
        try:
            report = self._drain_one(self._left.topic, partition, limits=self._limits_of_visit())
        except PartitionBusyError:
            self._busy.add(partition)
            return False
        except BaseException as error:
            # A user's exception class may refuse attributes; it must leave all the same.
            with suppress(Exception):
                self._add(error.drain_report)  # type: ignore[attr-defined]  # of this partition
                error.drain_report = self._report("error")  # type: ignore[attr-defined]  # of all of them
            raise
        self._busy.discard(partition)
        self._unseen.discard(partition)
        self._add(report)
        self._is_stopped = report.stopped_by == "stop"
        # What was handed back, as a later version's message, is read in every visit.
        return report.read > report.handed_back

    def _limits_of_visit(self) -> DrainLimits:
        limits, seconds = self._limits, None
        if limits.max_duration_s is not None:
            seconds = max(0.001, limits.max_duration_s - (time.monotonic() - self._started))
        left = None if limits.max_failures is None else limits.max_failures - self._failed
        messages = _TURN if limits.max_messages is None else min(_TURN, limits.max_messages - self._taken)
        return replace(limits, max_messages=messages, max_failures=left, max_duration_s=seconds, idle_ms=1)

    def _add(self, report: DrainReport) -> None:
        self._whole = sum_reports(self._whole, [self._whole, report])

    @property
    def _taken(self) -> int:
        return self._whole.read - self._whole.handed_back

    @property
    def _failed(self) -> int:
        return self._whole.failed + self._whole.retried + self._whole.dead_lettered

    def _reason_to_stop(self) -> StopReason | None:
        limits = self._limits
        if self._is_stopped or (limits.should_stop is not None and limits.should_stop()):
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
