"""DrainOperator: a bounded drain of a stream, or of one partition of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowSkipException, conf
from sqlalchemy import Engine

from airflow_provider_conquiet.attempts import TaskTry
from airflow_provider_conquiet.drains import ShouldStop, run_drain
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.handling import Handler, HandlingOperator
from airflow_provider_conquiet.partition_drains import PartitionDrain
from airflow_provider_conquiet.refusals import refused_at_once, whole_number
from airflow_provider_conquiet.reports import Report, drain_report, partition_report, tell_assets
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from conquiet import DrainReport, drain
from conquiet.mq import ConsumerConfig, PartitionBusyError, RetryPolicy, WorkerConfig

if TYPE_CHECKING:
    from airflow.sdk import Context


class DrainOperator(HandlingOperator):
    """Handles up to `max_messages` and returns counts and ids; ends early when the stream is idle.

    The arguments of `HandlingOperator`, and:

    Args:
        topic, partition: instead of `stream`; the partition's lease is held while it is drained, and failed
            messages are retried and dead-lettered as `message_retry` says.
        idle_ms: how long the stream must be empty for the drain to end.
        on_busy: what a task does whose partition another one drains: "skip" itself, or "fail" and be retried.
        message_retry: how failed messages of a topic are retried; unused for a stream.
        skip_on_empty: skip the task if there was no message.
        deferrable: while there is no backlog, and in a topic no retry or delayed message that is due, wait in
            the triggerer instead of a worker slot.
        poll_interval_s: how often the triggerer looks.
        wait_timeout: how long it waits before the task fails.
    """

    template_fields: Sequence[str] = (
        "stream",
        "topic",
        "partition",
        "group",
        "max_messages",
        "max_duration_s",
        "redis_streams_conn_id",
    )

    def __init__(
        self,
        *,
        group: str,
        handler: str | Handler,
        topic: str | None = None,
        partition: int | None = None,
        idle_ms: int = 1_000,
        on_busy: Literal["skip", "fail"] = "skip",
        message_retry: RetryPolicy | None = None,
        skip_on_empty: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval_s: float = 1.0,
        wait_timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(group=group, handler=handler, **kwargs)
        if (self.stream is None) == (topic is None) or (topic is None) != (partition is None):
            raise ValueError(
                f"task {self.task_id!r} drains a stream, or one partition of a topic; got "
                f"stream={self.stream!r}, topic={topic!r}, partition={partition!r}"
            )
        self.topic = topic
        self.partition = partition
        self.idle_ms = idle_ms
        self.on_busy = on_busy
        self.message_retry = message_retry
        self.skip_on_empty = skip_on_empty
        self.deferrable = deferrable
        self.poll_interval_s = poll_interval_s
        self.wait_timeout = wait_timeout

    def execute(self, context: Context) -> Report:
        """Drain; with `deferrable` and nothing to drain, wait for a backlog first."""
        if not self.deferrable:
            return self._told(context, self._drain(context))
        with refused_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            stream, due_in = self._stream_key(hook), self._due_keys(hook)
            backlog = hook.backlog(stream, self.group)
        if backlog.lag == 0 and not backlog.pending:
            self._wait_for_backlog(stream, due_in)
        report = self._drain(context)
        # What is pending may be an earlier try's, or handed back; or it is in the hands of others, or waits
        # for its retry.
        if not report["read"]:
            self._wait_for_backlog(stream, due_in)
        return self._told(context, report)

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None, **_: Any) -> Report:
        """Drain after the triggerer saw a backlog; another task may have taken it meanwhile."""
        return self._told(context, self._drain(context))

    def _wait_for_backlog(self, stream: str, due_in: list[str]) -> None:
        self.defer(
            trigger=BacklogTrigger(
                stream=stream,
                group=self.group,
                redis_streams_conn_id=self.redis_streams_conn_id,
                poll_interval_s=self.poll_interval_s,
                due_in=due_in,
                ring_again_s=None,
            ),
            method_name="execute_complete",
            timeout=self.wait_timeout,
        )

    def _told(self, context: Context, report: Report) -> Report:
        place = str(self.topic or self.stream)
        if self.skip_on_empty and not report["read"]:
            raise AirflowSkipException(f"no message in {place!r} for group {self.group!r}")
        if self.outlets:
            uri = RedisStreamsHook(self.redis_streams_conn_id).asset_uri(place)
            tell_assets(context, self.outlets, uri, report)
        return report

    def _drain(self, context: Context) -> Report:
        task_try = TaskTry.of_context(context)
        with self.opened(context) as (hook, engine):
            with refused_at_once():
                handler = self.loaded_handler(context)
            hook.record_input(str(self.topic or self.stream))
            drained = self._drain_stream if self.topic is None else self._drain_partition
            return drained(hook, engine, handler, task_try)

    def _drain_stream(
        self, hook: RedisStreamsHook, engine: Engine, handler: Handler, task_try: TaskTry
    ) -> Report:
        consumer = task_try.consumer_name
        with refused_at_once():
            settings = self.settings()
            queue = hook.queue(str(self.stream), self.group, consumer)
        earlier = task_try.others_among(queue.consumer_names())
        arguments = settings.as_arguments() | {"idle_ms": self.idle_ms, "take_over_from": earlier}

        def drain_until(should_stop: ShouldStop) -> DrainReport:
            return drain(queue, handler, engine, should_stop=should_stop, **arguments)

        report = run_drain(drain_until, should_stop=self.is_told_to_stop, max_failures=settings.max_failures)
        queue.remove_consumer(consumer)
        return drain_report(report, consumer=consumer, backlog=hook.backlog(str(self.stream), self.group))

    def _drain_partition(
        self, hook: RedisStreamsHook, engine: Engine, handler: Handler, task_try: TaskTry
    ) -> Report:
        with refused_at_once():
            stream = self._stream_key(hook)
            drained = PartitionDrain(
                topic=hook.topic(str(self.topic)),
                partition=whole_number("partition", self.partition),
                group=self.group,
                settings=self.settings(),
                idle_ms=self.idle_ms,
                config=self._consumer_config(task_try),
                replaces=task_try.earlier,
            )
        try:
            report = drained.run(handler, engine, self.is_told_to_stop)
        except PartitionBusyError as error:
            if self.on_busy == "fail":
                raise
            raise AirflowSkipException(str(error)) from error
        self._forget_consumers(hook, stream, task_try)
        backlog = hook.backlog(stream, self.group)
        return partition_report(report, consumer=task_try.consumer_name, backlog=backlog)

    def _forget_consumers(self, hook: RedisStreamsHook, stream: str, task_try: TaskTry) -> None:
        queue = hook.queue(stream, self.group, task_try.consumer_name)
        for name in (*task_try.earlier, task_try.consumer_name):
            queue.remove_consumer(name)

    def _consumer_config(self, task_try: TaskTry) -> ConsumerConfig:
        return ConsumerConfig(
            consumer_name=task_try.consumer_name,
            retry=self.message_retry or RetryPolicy(),
            worker=WorkerConfig(batch_size=self.batch_size),
        )

    def _stream_key(self, hook: RedisStreamsHook) -> str:
        if self.stream is not None:
            return self.stream
        return hook.partition_stream(str(self.topic), whole_number("partition", self.partition))

    def _due_keys(self, hook: RedisStreamsHook) -> list[str]:
        # Retries are pending, delayed messages are in no stream: neither is a lag.
        if self.topic is None:
            return []
        keys, partition = hook.topic(str(self.topic)).keys, whole_number("partition", self.partition)
        return [keys.waiting(self.group, partition), keys.delayed(partition)]
