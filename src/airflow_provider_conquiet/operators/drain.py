"""DrainOperator: a bounded drain of a stream, of a topic, or of one of its partitions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_conquiet.airflow_names import HAS_ASSET_PARTITIONS, AirflowSkipException, conf
from airflow_provider_conquiet.arguments import failing_at_once, number
from airflow_provider_conquiet.drains import PartitionDrain, StreamDrain, TaskDrain, TopicDrain
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.handling import HandlingOperator
from airflow_provider_conquiet.reports import Report
from airflow_provider_conquiet.task_try import TaskTry
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from conquiet.consume import Handler
from conquiet.mq import PartitionBusyError, RetryPolicy
from conquiet.mq.own.drain_topic import Until
from conquiet.queue.config import CLAIM_IDLE_MS

if TYPE_CHECKING:
    from airflow.sdk import Context

#: How long a drain waits at most, while something is pending elsewhere, until it looks whether those died.
_LONGEST_WAIT_S = 3_600.0


class DrainOperator(HandlingOperator):
    """Handles up to `max_messages` and returns counts and ids; ends early when the stream is idle.

    The arguments of `HandlingOperator`, and:

    Args:
        topic, partition: instead of `stream`; without a partition, all of them in turn. A partition is leased
            while it is drained, and failed messages are retried and dead-lettered by `message_retry`.
        until: of a whole topic, what ends the drain besides the limits: "idle", "settled" (no retry waits) or
            "empty" (no delayed message does); as in `drain_topic`.
        on_busy: what a task does if other consumers own all that it drains: "skip", or "fail" and be retried.
        message_retry: how failed messages of a topic are retried; unused for a stream.
        asset_partitions: with a partition, events of `outlets` are of the asset's partition of its number;
            they start DAGs that are scheduled by asset partitions, and no others.
        skip_on_empty: skip the task if there was no message.
        deferrable: while there is no backlog, and in a topic no retry or delayed message that is due, wait in
            the triggerer instead of a worker slot; it also goes on for what a drain that died has left.
        poll_interval_s: how often the triggerer polls.
        wait_timeout: how long it waits before the task fails.

    Examples:
        >>> with DAG("bill_orders", schedule="* * * * *", max_active_runs=1, catchup=False):
        ...     drained = DrainOperator(
        ...         task_id="bill", stream="orders", group="billing", handler=bill, inbox=True, retries=2
        ...     )
    """

    template_fields: Sequence[str] = (*HandlingOperator.template_fields, "topic", "partition")

    def __init__(
        self,
        *,
        group: str,
        handler: str | Handler,
        topic: str | None = None,
        partition: int | None = None,
        until: Until = "idle",
        on_busy: Literal["skip", "fail"] = "skip",
        message_retry: RetryPolicy | None = None,
        asset_partitions: bool = False,
        skip_on_empty: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval_s: float = 1.0,
        wait_timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(group=group, handler=handler, **kwargs)
        is_whole_topic = topic is not None and partition is None
        if (self.stream is None) == (topic is None) or (topic is None and partition is not None):
            raise ValueError(
                f"task {self.task_id!r} drains a stream, a topic, or one partition of a topic; got "
                f"stream={self.stream!r}, topic={topic!r}, partition={partition!r}"
            )
        if until not in ("idle", "settled", "empty") or (until != "idle" and not is_whole_topic):
            raise ValueError(
                f"until is 'idle', 'settled' or 'empty', the last two for a whole topic, got {until!r}"
            )
        self.topic = topic
        self.partition = partition
        self.until = until
        self.on_busy = on_busy
        self.message_retry = message_retry
        if asset_partitions and (topic is None or not HAS_ASSET_PARTITIONS):
            raise ValueError(
                f"task {self.task_id!r} has asset_partitions, which need a topic, and Airflow 3.3"
            )
        self.asset_partitions = asset_partitions
        self.skip_on_empty = skip_on_empty
        self.deferrable = deferrable
        self.poll_interval_s = poll_interval_s
        self.wait_timeout = wait_timeout

    def task_drain(self, hook: RedisStreamsHook, task_try: TaskTry) -> TaskDrain:
        """The stream, the topic, or the partition of the topic."""
        arguments = self.drain_arguments(hook, task_try)
        if self.topic is None:
            return StreamDrain(stream=str(self.stream), **arguments)
        topic = hook.topic(self.topic)
        arguments |= {"topic": topic, "retry": self.message_retry or RetryPolicy()}
        if self.partition is None:
            return TopicDrain(stream=self.topic, until=self.until, **arguments)
        partition = number("partition", self.partition, int)
        topic.check_partition(partition)
        return PartitionDrain(stream=topic.keys.stream(partition), partition=partition, **arguments)

    @property
    def outlet_partition(self) -> str | None:
        """As `HandlingOperator.outlet_partition`: the number of the partition, where it was asked for."""
        return str(self.partition) if self.asset_partitions and self.partition is not None else None

    def execute(self, context: Context) -> Report:
        """Drain; with `deferrable` and nothing to drain, wait for a backlog first."""
        if not self.deferrable:
            return self.execute_complete(context)
        with failing_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            backlog = self.task_drain(hook, TaskTry.of_context(context)).backlog()
        if backlog.lag != 0 or backlog.pending:
            report = self.drain_once(context)
            # What is pending may be in flight at other consumers, or wait for its retry.
            if report["read"]:
                return report
        return self._wait(
            context, latest_s=CLAIM_IDLE_MS / 1000 if backlog.pending else None, since=time.time()
        )

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any] | None = None,
        latest_s: float | None = None,
        since: float = 0.0,
        **_: Any,
    ) -> Report:
        """Drain after the triggerer saw a backlog; another task may have drained it meanwhile.

        Args:
            latest_s, since: as of the wait that has ended.
        """
        report = self.drain_once(context)
        if report["read"]:
            return report
        if latest_s is not None and event is not None and event["lag"] == 0:
            # What is pending is in flight, or has failed. It may be so for ever: less and less often.
            later_s = min(2 * latest_s, _LONGEST_WAIT_S) if report["remaining_pending"] else None
            return self._wait(context, latest_s=later_s, since=since)
        if self.skip_on_empty:
            name = self.topic or self.stream
            raise AirflowSkipException(f"no message in {name!r} for group {self.group!r}")
        return report

    def _wait(self, context: Context, *, latest_s: float | None, since: float) -> Report:
        """Wait in the triggerer for a backlog.

        Args:
            latest_s: after which it drains anyway: who has something pending may have died meanwhile.
            since: when the first wait of this try began, in seconds since the epoch.
        """
        with failing_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            drain = self.task_drain(hook, TaskTry.of_context(context))
        trigger = BacklogTrigger(
            **({"topic": self.topic} if type(drain) is TopicDrain else {"stream": drain.stream}),
            group=self.group,
            redis_streams_conn_id=self.redis_streams_conn_id,
            poll_interval_s=self.poll_interval_s,
            due_in=drain.due_in,
            ring_again_s=None,
            latest_s=latest_s,
        )
        timeout = self.wait_timeout
        if timeout is not None:
            timeout = max(timedelta(0), timeout - timedelta(seconds=time.time() - since))
        return self.defer(
            trigger=trigger,
            method_name="execute_complete",
            kwargs={"latest_s": latest_s, "since": since},
            timeout=timeout,
        )

    def drain_once(self, context: Context) -> Report:
        """As `HandlingOperator.drain_once`; skips the task if its partition is busy and `on_busy` says so."""
        try:
            return super().drain_once(context)
        except PartitionBusyError as error:
            if self.on_busy == "fail":
                raise
            raise AirflowSkipException(str(error)) from error
