"""DrainSensor: done when so many messages have been drained and handled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_conquiet.arguments import failing_at_once, number
from airflow_provider_conquiet.drains import StreamDrain
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.handling import HandlingOperator
from airflow_provider_conquiet.sensors.drain_counts import DrainCounts
from airflow_provider_conquiet.task_try import TaskTry
from conquiet import DbSession, Inbox, QueueMessage
from conquiet.consume import Handler
from conquiet.consume.batch_handler import BatchHandler

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Longer than a task instance is retried or rescheduled.
_KEPT = timedelta(days=30)


class DrainSensor(HandlingOperator, BaseSensorOperator):
    """Each poke drains what is there; the sensor is done when `count` messages have been handled.

    Each message is counted in the transaction of its handler, in the application's database, and handled once
    by an inbox: reschedules, retries and kills neither lose a count nor add one. Further arguments are those
    of `HandlingOperator` and of Airflow's sensors; `max_messages` bounds one poke.

    Args:
        count: of this task instance, over all of its tries; a task that was cleared counts on.

    Examples:
        >>> with DAG("all_tills", schedule="@daily", catchup=False):
        ...     counted = DrainSensor(task_id="count", stream="tills", group="books", handler=bill, count=12)
    """

    template_fields: Sequence[str] = (*HandlingOperator.template_fields, "count")

    def __init__(self, *, stream: str, group: str, handler: str | Handler, count: int, **kwargs: Any) -> None:
        super().__init__(stream=stream, group=group, handler=handler, **kwargs)
        self.count = count

    def task_drain(self, hook: RedisStreamsHook, task_try: TaskTry) -> StreamDrain:
        """The stream, always with an inbox."""
        drain = StreamDrain(stream=str(self.stream), **self.drain_arguments(hook, task_try))
        return replace(drain, inbox=drain.inbox or Inbox())

    def poke(self, context: Context) -> PokeReturnValue:
        """Drain what is there, up to what is missing."""
        task_try = TaskTry.of_context(context)
        counts = DrainCounts(task_try.task_instance)
        with self.opened(context) as (hook, engine):
            with failing_at_once():
                wanted = number("count", self.count, int)
                handler = self.loaded_handler(context)
                if isinstance(handler, BatchHandler):
                    raise TypeError(f"{self.handler!r} handles batches, and this sensor counts each message")
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
            left = drain.limits.max_messages or math.inf
            while total < wanted and left > 0:
                limits = replace(drain.limits, max_messages=int(min(left, wanted - total)))
                report = replace(drain, limits=limits).run(handle_and_count, engine)
                total = counts.total(engine)
                left -= report.read
                # What an earlier try had handled was acked and not counted again: there may be more.
                if report.stopped_by != "max_messages" or not report.skipped:
                    break
            if total >= wanted:
                counts.purge(engine, _KEPT)
        return PokeReturnValue(
            total >= wanted, {"stream": self.stream, "group": self.group, "handled": total, "wanted": wanted}
        )
