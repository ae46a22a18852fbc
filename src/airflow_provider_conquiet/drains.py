"""Drains inside a task: what is drained, and which ends of a drain are the task's failure."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from sqlalchemy import Engine

from airflow_provider_conquiet.arguments import failing_at_once
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.task_try import TaskTry
from conquiet import DbError, DrainError, DrainLimits, DrainReport, Inbox, drain, drain_stale
from conquiet.consume import Handler
from conquiet.db import is_connection_lost
from conquiet.logs import MessageLog
from conquiet.mq import ConsumerConfig, RetryPolicy, Topic, drain_partition
from conquiet.mq.look.owners import group_owners

_log = MessageLog(logging.getLogger(__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDrain(ABC):
    """One drain by one try of a task."""

    hook: RedisStreamsHook
    #: The key of the stream; of a topic, that of the partition's.
    stream: str
    group: str
    limits: DrainLimits
    inbox: Inbox | None
    task_try: TaskTry

    def run(self, handler: Handler, engine: Engine) -> DrainReport:
        """Drain, and keep the retries of messages apart from those of tasks.

        Raises:
            AirflowFailException: `max_failures` messages failed, or an argument is wrong: a retry of the task
                would change nothing.
            AirflowException: the task was stopped before the drain was done.
            PartitionBusyError: another consumer owns the partition.
            DbError, QueueError: the database or Redis failed; Airflow's retries are for this.
        """
        with failing_at_once():
            ended_tries = self.task_try.others_among(self.known_consumers())
            try:
                report = self.drain(handler, engine, ended_tries)
            except DrainError as error:
                if any(is_connection_lost(failure.error) for failure in error.failures):
                    raise DbError(f"the database closed a connection during the drain: {error}") from error
                _log.warning(
                    "%s; they are redelivered to this task's next try, or when they are claimed as stale",
                    error,
                )
                report = error.report
        if report.stopped_by == "max_failures":
            first = report.failures[0].error if report.failures else None
            raise AirflowFailException(
                f"max_failures={self.limits.max_failures} messages failed: fix the handler, then clear this "
                f"task; {report.to_json()}"
            ) from first
        if report.stopped_by == "stop":
            raise AirflowException(f"stopped before the drain was done: {report.to_json()}")
        return report

    def known_consumers(self) -> list[str]:
        """The names under which something may be pending or leased."""
        return [consumer.name for consumer in self.hook.backlog(self.stream, self.group).consumers]

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
        """As `TaskDrain.drain`."""
        queue = self.hook.queue(self.stream, self.group, self.task_try.consumer_name)
        return drain(queue, handler, engine, self.limits, inbox=self.inbox, take_over_from=take_over_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleDrain(TaskDrain):
    """Claims stale messages of a plain stream, those of the task's ended tries as those of any consumer."""

    #: `None`: the queue's `claim_idle_ms`.
    min_idle_ms: int | None

    def drain(self, handler: Handler, engine: Engine, take_over_from: list[str]) -> DrainReport:
        """As `TaskDrain.drain`, but that nothing is taken over before it is stale."""
        queue = self.hook.queue(self.stream, self.group, self.task_try.consumer_name)
        return drain_stale(
            queue, handler, engine, self.limits, inbox=self.inbox, min_idle_ms=self.min_idle_ms
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDrain(TaskDrain):
    """Drains one partition of a topic under its lease, which it takes from ended tries of the task."""

    topic: Topic
    partition: int
    retry: RetryPolicy

    def known_consumers(self) -> list[str]:
        """As `TaskDrain.known_consumers`, and the owner of the lease, who may have read nothing yet."""
        owners = group_owners(self.topic, self.group).partitions
        # Before Python 3.14, `super()` fails in a dataclass with slots.
        return [*TaskDrain.known_consumers(self), *(lease.owner for lease in owners if lease.owner)]

    @property
    def source(self) -> str:
        """As `TaskDrain.source`."""
        return self.topic.name

    @property
    def due_in(self) -> list[str]:
        """The partition's retries and delayed messages."""
        keys = self.topic.keys
        return [keys.waiting(self.group, self.partition), keys.delayed(self.partition)]

    def drain(self, handler: Handler, engine: Engine, take_over_from: list[str]) -> DrainReport:
        """As `TaskDrain.drain`."""
        config = ConsumerConfig(
            consumer_name=self.task_try.consumer_name,
            retry=self.retry,
            batch_size=self.limits.batch_size,
            take_over_from=tuple(take_over_from),
        )
        partition = (self.topic, self.partition, self.group)
        return drain_partition(*partition, handler, engine, self.limits, inbox=self.inbox, config=config)
