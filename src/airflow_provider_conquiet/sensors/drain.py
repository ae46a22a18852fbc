"""DrainSensor: done when so many messages have been drained and handled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from sqlalchemy import Engine

from airflow_provider_conquiet.attempts import TaskTry
from airflow_provider_conquiet.drains import ShouldStop, run_drain
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.handling import Handler, HandlingOperator
from airflow_provider_conquiet.refusals import refused_at_once, whole_number
from airflow_provider_conquiet.sensors.drain_counts import DrainCounts
from conquiet import DbSession, DrainReport, Inbox, QueueMessage, drain

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
        idle_ms: how long the stream must be empty for a poke to end.
    """

    template_fields: Sequence[str] = ("stream", "group", "count", "max_messages", "redis_streams_conn_id")

    def __init__(
        self,
        *,
        stream: str,
        group: str,
        handler: str | Handler,
        count: int,
        idle_ms: int = 1_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(stream=stream, group=group, handler=handler, **kwargs)
        self.count = count
        self.idle_ms = idle_ms

    def poke(self, context: Context) -> PokeReturnValue:
        """Drain what is there, up to what is missing."""
        task_try = TaskTry.of_context(context)
        counts = DrainCounts(task_try.task_instance)
        with self.opened(context) as (hook, engine):
            with refused_at_once():
                wanted = whole_number("count", self.count)
                handler = _counting(self.loaded_handler(context), counts)
            counts.create_table(engine)
            total = counts.total(engine)
            left = self.settings().max_messages
            while total < wanted and left > 0:
                report = self._drain(hook, engine, handler, task_try, min(left, wanted - total))
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

    def _drain(
        self, hook: RedisStreamsHook, engine: Engine, handler: Handler, task_try: TaskTry, max_messages: int
    ) -> DrainReport:
        consumer = task_try.consumer_name
        with refused_at_once():
            settings = self.settings()
            queue = hook.queue(str(self.stream), self.group, consumer)
        settings = replace(settings, max_messages=max_messages, inbox=settings.inbox or Inbox())
        earlier = task_try.others_among(queue.consumer_names())
        arguments = settings.as_arguments() | {"idle_ms": self.idle_ms, "take_over_from": earlier}

        def drain_until(should_stop: ShouldStop) -> DrainReport:
            return drain(queue, handler, engine, should_stop=should_stop, **arguments)

        report = run_drain(drain_until, should_stop=self.is_told_to_stop, max_failures=settings.max_failures)
        self.log.info("drained: %s", report.to_json())
        queue.remove_consumer(consumer)
        return report


def _counting(handler: Handler, counts: DrainCounts) -> Handler:
    def handle_and_count(msg: QueueMessage, session: DbSession) -> Any:
        # The inbox may have been purged since; its effects are there if it was counted.
        if counts.has(session, msg):
            return None
        result = handler(msg, session)
        counts.add(session, msg)
        return result

    return handle_and_count
