"""ClaimStaleOperator: the scheduled recovery of what crashed workers left pending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_conquiet.attempts import TaskTry
from airflow_provider_conquiet.drains import ShouldStop, run_drain
from airflow_provider_conquiet.operators.handling import Handler, HandlingOperator
from airflow_provider_conquiet.refusals import refused_at_once, whole_number
from airflow_provider_conquiet.reports import Report, drain_report, tell_assets
from conquiet import DrainReport, drain_stale

if TYPE_CHECKING:
    from airflow.sdk import Context


class ClaimStaleOperator(HandlingOperator):
    """Claims messages that nobody has touched for a time and handles them as a drain does.

    The arguments of `HandlingOperator`, and:

    Args:
        min_idle_ms: longer than the slowest handler and than Airflow needs to notice a dead worker; else
            it takes messages that are being handled.
    """

    template_fields: Sequence[str] = (
        "stream",
        "group",
        "min_idle_ms",
        "max_messages",
        "max_duration_s",
        "max_deliveries",
        "redis_streams_conn_id",
    )

    def __init__(
        self,
        *,
        stream: str,
        group: str,
        handler: str | Handler,
        min_idle_ms: int = 600_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(stream=stream, group=group, handler=handler, **kwargs)
        self.min_idle_ms = min_idle_ms

    def execute(self, context: Context) -> Report:
        """Claim, handle and ack; quarantine what was delivered more often than `max_deliveries`."""
        consumer = TaskTry.of_context(context).consumer_name
        stream = str(self.stream)
        with self.opened(context) as (hook, engine):
            with refused_at_once():
                handler = self.loaded_handler(context)
                settings = self.settings()
                min_idle_ms = whole_number("min_idle_ms", self.min_idle_ms)
                queue = hook.queue(stream, self.group, consumer)

            def drain_until(should_stop: ShouldStop) -> DrainReport:
                arguments = settings.as_arguments() | {"min_idle_ms": min_idle_ms}
                return drain_stale(queue, handler, engine, should_stop=should_stop, **arguments)

            report = run_drain(
                drain_until, should_stop=self.is_told_to_stop, max_failures=settings.max_failures
            )
            queue.remove_consumer(consumer)
            told = drain_report(report, consumer=consumer, backlog=hook.backlog(stream, self.group))
            hook.record_input(stream)
            tell_assets(context, self.outlets, hook.asset_uri(stream), told)
        return told
