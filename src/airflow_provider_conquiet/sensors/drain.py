"""DrainSensor: done when so many messages have been drained and handled."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_conquiet.airflow_names import conf
from airflow_provider_conquiet.arguments import failing_at_once, number, stream_or_topic
from airflow_provider_conquiet.drains import StreamDrain, TaskDrain, TopicDrain, handled_before
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.lineage import Lineage
from airflow_provider_conquiet.operators.handling import HandlingOperator
from airflow_provider_conquiet.reports import Report, drain_report, update_outlets
from airflow_provider_conquiet.sensors.drain_counts import DrainCounts
from airflow_provider_conquiet.task_try import TaskTry
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from airflow_provider_conquiet.triggers.thresholds import ThresholdArguments
from conquiet import DbSession, Inbox, QueueMessage
from conquiet.consume import Handler
from conquiet.consume.batch_handler import BatchHandler
from conquiet.mq import PartitionBusyError, RetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Longer than a task instance is retried or rescheduled.
_KEPT = timedelta(days=30)
#: What a report has of the last poke alone.
_OF_LAST_POKE = (
    *("failed", "retried", "dead_lettered", "failures_by_error", "failed_ids", "first_id", "last_id"),
    *("per_second", "consumer", "remaining_lag", "remaining_pending"),
)


class DrainSensor(HandlingOperator, BaseSensorOperator):
    """Each poke drains what is there; the sensor is done when `count` messages have been handled.

    Each message is counted in the transaction of its handler, in the application's database, and handled once
    by an inbox: reschedules, retries and kills neither lose a count nor add one. Further arguments are those
    of `HandlingOperator` and of Airflow's sensors; `max_messages` bounds one poke.

    Args:
        count: of this task instance, over all of its tries; a task that was cleared counts on.
        topic: instead of `stream`; all of its partitions, each under its lease.
        message_retry: how failed messages of a topic are retried; unused for a stream.
        deferrable: between pokes wait in the triggerer until there is something to drain.
        poll_interval_s: how often the triggerer polls.

    Examples:
        >>> with DAG("all_tills", schedule="@daily", catchup=False):
        ...     counted = DrainSensor(task_id="count", stream="tills", group="books", handler=bill, count=12)
    """

    template_fields: Sequence[str] = (*HandlingOperator.template_fields, "topic", "count")

    #: Whether the last poke found all partitions owned by others.
    _is_busy = False

    def __init__(
        self,
        *,
        group: str,
        handler: str | Handler,
        count: int | str,
        topic: str | None = None,
        message_retry: RetryPolicy | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval_s: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(group=group, handler=handler, **kwargs)
        stream_or_topic(self.stream, topic)
        self.topic = topic
        self.message_retry = message_retry
        self.deferrable = deferrable
        self.poll_interval_s = poll_interval_s
        self.count = count

    def task_drain(self, hook: RedisStreamsHook, task_try: TaskTry) -> TaskDrain:
        """The stream or the topic, always with an inbox."""
        arguments = self.drain_arguments(hook, task_try)
        arguments["inbox"] = arguments["inbox"] or Inbox()
        if self.topic is None:
            return StreamDrain(stream=str(self.stream), **arguments)
        retry = self.message_retry or RetryPolicy()
        return TopicDrain(stream=self.topic, topic=hook.topic(self.topic), retry=retry, **arguments)

    def execute(self, context: Context) -> Any:
        """Poke until enough was handled; with `deferrable`, between pokes from the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        return self.execute_again(context)

    def execute_again(self, context: Context, started_at: float | None = None, **_: Any) -> Any:
        """Poke once, and wait for more in the triggerer if that was not enough.

        Args:
            started_at: when the first of these pokes was, in seconds since the epoch.
        """
        started_at = started_at or time.time()
        self._is_busy = False
        result = self.poke(context)
        if result.is_done:
            return result.xcom_value
        with failing_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            drain = self.task_drain(hook, TaskTry.of_context(context))
            has_pending = drain.backlog().pending > 0
        thresholds: ThresholdArguments = {"min_lag": 1}
        if self._is_busy:
            # What others drain is no reason to be back before that.
            thresholds = {"min_lag": None, "min_age_s": self.timeout + 1.0}
        trigger = BacklogTrigger(
            stream=self.stream,
            topic=self.topic,
            group=self.group,
            redis_streams_conn_id=self.redis_streams_conn_id,
            poll_interval_s=self.poll_interval_s,
            due_in=drain.due_in,
            ring_again_s=None,
            # What failed is drained again by the next poke, as it is without a triggerer.
            latest_s=self.poke_interval if has_pending or self._is_busy else None,
            **thresholds,
        )
        left_s = max(0.0, started_at + self.timeout - time.time())
        return self.defer(
            trigger=trigger,
            method_name="execute_again",
            kwargs={"started_at": started_at},
            timeout=timedelta(seconds=left_s),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Drain what is there, up to what is missing."""
        task_try = TaskTry.of_context(context)
        counts = DrainCounts(task_try.task_instance)
        with self.opened(context) as (hook, engine):
            with failing_at_once():
                wanted = number("count", self.count, int)
                handler = self.loaded_handler(context)
                if isinstance(handler, BatchHandler):
                    raise TypeError(
                        f"task {self.task_id!r} has a handler of batches, and counts each message"
                    )
                drain = self.task_drain(hook, task_try)

            def handle_and_count(msg: QueueMessage, session: DbSession) -> Any:
                # The inbox may have been purged since; its effects are there if it was counted.
                if counts.has(session, msg):
                    return None
                result = handler(msg, session)
                counts.add(session, msg)
                return result

            counts.create_table(engine)
            total = counts.total(engine)
            uri = hook.asset_uri(drain.source)
            hook.record_input(drain.source)
            last: Report = {}
            left = drain.limits.max_messages or math.inf
            while total < wanted and left > 0:
                limits = replace(drain.limits, max_messages=int(min(left, wanted - total)))
                try:
                    done = replace(drain, limits=limits).run(handle_and_count, engine)
                except PartitionBusyError:
                    # Other consumers own all partitions now.
                    self._is_busy = True
                    break
                except Exception as error:
                    self.lineage = Lineage(inputs={uri: total + handled_before(error)})
                    raise
                last = drain_report(done, consumer=task_try.consumer_name, backlog=drain.backlog())
                total = counts.total(engine)
                left -= done.read
                # What an earlier try had handled was acked and not counted again: there may be more.
                if done.stopped_by != "max_messages" or not done.skipped:
                    break
            if total >= wanted:
                counts.purge(engine, _KEPT)
            self.lineage = Lineage(inputs={uri: total})
            kind, name = stream_or_topic(self.stream, self.topic)
            # Of the last poke but for what is counted: `handled` is over all of them.
            of_last = {field: last[field] for field in _OF_LAST_POKE if field in last}
            report = {**of_last, kind: name, "group": self.group, "handled": total, "wanted": wanted}
            if total >= wanted:
                update_outlets(context, self.outlets, uri, report)
        return PokeReturnValue(total >= wanted, report)
