"""Drains inside a task: what is drained, and which ends of a drain are the task's failure."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Engine

from airflow_provider_conquiet.airflow_names import AirflowException, AirflowFailException
from airflow_provider_conquiet.arguments import failing_at_once
from airflow_provider_conquiet.drain_log import Begin, DrainLog
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.task_try import TaskTry
from conquiet import DbError, DrainError, DrainLimits, DrainReport, Inbox, drain, drain_stale
from conquiet.consume import Handler
from conquiet.db import is_connection_lost
from conquiet.logs import MessageLog
from conquiet.mq import (
    ConsumerConfig,
    PartitionBusyError,
    RetryPolicy,
    Topic,
    drain_partition,
    drain_topic,
    total_backlog,
)
from conquiet.mq.look.owners import group_owners
from conquiet.mq.own.drain_topic import Until
from conquiet.queue import BacklogStats

_log = MessageLog(logging.getLogger(__name__))

E = TypeVar("E", bound=Exception)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDrain(ABC):
    """One drain by one try of a task."""

    hook: RedisStreamsHook
    #: The key of the stream; of a topic, that of the partition's.
    stream: str
    group: str
    limits: DrainLimits
    inbox: Inbox | None
    #: The type of the messages' payloads, or its import string.
    payload: Any
    task_try: TaskTry
    #: How often the log shows progress; `None` for never.
    progress_every_s: float | None

    def run(self, handler: Handler, engine: Engine) -> DrainReport:
        """Drain, and keep the retries of messages apart from those of tasks.

        Raises:
            AirflowFailException: `max_failures` messages failed, or an argument is wrong: a retry of the task
                would change nothing.
            AirflowException: the task was stopped before the drain was done.
            PartitionBusyError: another consumer owns the partition.
            DbError, QueueError: the database or Redis failed; Airflow's retries are for this.

        What is raised after the drain has begun has its report: see `handled_before`.
        """
        with failing_at_once():
            backlog = self.backlog()
            ended_tries = self.ended_tries(backlog)
            begin = Begin(
                name=self.shown_name,
                group=self.group,
                consumer=self.task_try.consumer_name,
                backlog=backlog,
                ended_tries={name: name.rpartition(":")[2] for name in ended_tries},
            )
            try:
                with DrainLog(begin, engine, self.backlog, every_s=self.progress_every_s) as shown:
                    report = self.drain(shown.counted(handler), engine, ended_tries)
                    shown.show(report)
            except DrainError as error:
                if any(is_connection_lost(failure.error) for failure in error.failures):
                    lost = DbError(f"the database closed a connection during the drain: {error}")
                    raise _with_report(lost, error.report) from error
                _log.warning(
                    "%s; they are redelivered to this task's next try, or when they are claimed as stale",
                    error,
                )
                report = error.report
        if report.stopped_by == "max_failures":
            first = report.failures[0].error if report.failures else None
            failed = AirflowFailException(
                f"max_failures={self.limits.max_failures} messages failed: fix the handler, then clear this "
                f"task; {report.to_json()}"
            )
            raise _with_report(failed, report) from first
        if report.stopped_by == "stop":
            stopped = AirflowException(f"stopped before the drain was done: {report.to_json()}")
            raise _with_report(stopped, report)
        return report

    def ended_tries(self, backlog: BacklogStats) -> list[str]:
        """The consumers of the task's other tries, whose messages this one takes over."""
        return self.task_try.others_among(self.known_consumers(backlog))

    def known_consumers(self, backlog: BacklogStats) -> list[str]:
        """The names under which something may be pending or leased."""
        return [consumer.name for consumer in backlog.consumers]

    @property
    def shown_name(self) -> str:
        """What the log calls it."""
        return f"stream {self.stream!r}"

    def backlog(self) -> BacklogStats:
        """What there is to drain now."""
        return self.hook.backlog(self.stream, self.group)

    @property
    def source(self) -> str:
        """What users call it: the stream, or the topic."""
        return self.stream

    @property
    def due_in(self) -> list[str]:
        """Sorted sets, by due time, of messages that are in no stream's lag."""
        return []

    @abstractmethod
    def drain(self, handler: Handler, engine: Engine, take_over_from: list[str]) -> DrainReport:
        """Drain, beginning with what the ended tries of the task left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDrain(TaskDrain):
    """Drains a plain stream."""

    def drain(self, handler: Handler, engine: Engine, take_over_from: list[str]) -> DrainReport:
        queue = self.hook.queue(self.stream, self.group, self.task_try.consumer_name)
        how: dict[str, Any] = {"inbox": self.inbox, "payload": self.payload}
        return drain(queue, handler, engine, self.limits, take_over_from=take_over_from, **how)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleDrain(TaskDrain):
    """Claims stale messages of a plain stream, those of the task's ended tries as those of any consumer."""

    #: `None`: the queue's `claim_idle_ms`.
    min_idle_ms: int | None

    def ended_tries(self, backlog: BacklogStats) -> list[str]:
        """None: what they left is claimed when it is stale, as that of any consumer."""
        return []

    def drain(self, handler: Handler, engine: Engine, take_over_from: list[str]) -> DrainReport:
        """As `TaskDrain.drain`, but that nothing is taken over before it is stale."""
        queue = self.hook.queue(self.stream, self.group, self.task_try.consumer_name)
        how: dict[str, Any] = {"inbox": self.inbox, "payload": self.payload}
        return drain_stale(queue, handler, engine, self.limits, min_idle_ms=self.min_idle_ms, **how)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDrain(TaskDrain):
    """Drains all partitions of a topic, each under its lease, which it takes from ended tries of the task."""

    topic: Topic
    retry: RetryPolicy
    until: Until = "idle"

    @property
    def partitions(self) -> list[int]:
        """What it drains of the topic."""
        return list(self.topic.partitions)

    def known_consumers(self, backlog: BacklogStats) -> list[str]:
        """As `TaskDrain.known_consumers`, and the owner of the lease, who may have read nothing yet."""
        owners = group_owners(self.topic, self.group).partitions
        # Before Python 3.14, `super()` fails in a dataclass with slots.
        return [*TaskDrain.known_consumers(self, backlog), *(lease.owner for lease in owners if lease.owner)]

    @property
    def source(self) -> str:
        return self.topic.name

    @property
    def shown_name(self) -> str:
        """As `TaskDrain.shown_name`."""
        return f"topic {self.topic.name!r}"

    @property
    def due_in(self) -> list[str]:
        """The retries and delayed messages of its partitions."""
        keys = self.topic.keys
        found = [keys.waiting(self.group, partition) for partition in self.partitions]
        return [*found, *dict.fromkeys(map(keys.delayed, self.partitions))]

    def backlog(self) -> BacklogStats:
        """As `TaskDrain.backlog`, of all of its partitions."""
        streams = map(self.topic.keys.stream, self.partitions)
        parts = [self.hook.backlog(stream, self.group) for stream in streams]
        return total_backlog(self.topic.name, self.group, parts)

    def drain(self, handler: Handler, engine: Engine, take_over_from: list[str]) -> DrainReport:
        """As `TaskDrain.drain`.

        Raises:
            PartitionBusyError: other consumers own every partition.
        """
        config, how = self.consumer_config(take_over_from), (handler, engine, self.limits)
        report = drain_topic(self.topic, self.group, *how, inbox=self.inbox, config=config, until=self.until)
        if len(report.busy) == len(self.partitions) and not report.read:
            raise PartitionBusyError(self.topic.name, partition=report.busy[0], group=self.group)
        return report

    def consumer_config(self, take_over_from: list[str]) -> ConsumerConfig:
        """Of the owner that this try of the task is."""
        return ConsumerConfig(
            consumer_name=self.task_try.consumer_name,
            retry=self.retry,
            take_over_from=tuple(take_over_from),
            payload=self.payload,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDrain(TopicDrain):
    """Drains one partition of a topic."""

    partition: int

    @property
    def partitions(self) -> list[int]:
        """As `TopicDrain.partitions`."""
        return [self.partition]

    @property
    def shown_name(self) -> str:
        """As `TaskDrain.shown_name`."""
        return f"partition {self.partition} of topic {self.topic.name!r}"

    def drain(self, handler: Handler, engine: Engine, take_over_from: list[str]) -> DrainReport:
        """As `TaskDrain.drain`."""
        config, partition = self.consumer_config(take_over_from), (self.topic, self.partition, self.group)
        return drain_partition(*partition, handler, engine, self.limits, inbox=self.inbox, config=config)


def handled_before(error: BaseException) -> int:
    """How many messages a drain had handled and committed when it ended with this error."""
    for report in (getattr(error, "drain_report", None), getattr(error, "report", None)):
        if isinstance(report, DrainReport):
            return report.handled
    return 0


def _with_report(error: E, report: DrainReport) -> E:
    error.drain_report = report  # type: ignore[attr-defined]  # as the library's own drains do
    return error
