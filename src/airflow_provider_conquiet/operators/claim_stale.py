"""ClaimStaleOperator: the scheduled recovery of what crashed workers left pending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_conquiet.arguments import optional_number
from airflow_provider_conquiet.drains import StaleDrain
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.handling import HandlingOperator
from airflow_provider_conquiet.reports import Report
from airflow_provider_conquiet.task_try import TaskTry
from conquiet.consume import Handler

if TYPE_CHECKING:
    from airflow.sdk import Context


class ClaimStaleOperator(HandlingOperator):
    """Claims messages that were pending and idle for a time, and handles them as a drain does.

    The arguments of `HandlingOperator`, and:

    Args:
        min_idle_ms: the queue's `claim_idle_ms` unless given; longer than the longest handler, or it claims
            messages that are being handled.

    Examples:
        >>> with DAG("recover_orders", schedule="*/5 * * * *", max_active_runs=1, catchup=False):
        ...     claimed = ClaimStaleOperator(
        ...         task_id="claim", stream="orders", group="billing", handler=bill, max_deliveries=5
        ...     )
    """

    template_fields: Sequence[str] = (*HandlingOperator.template_fields, "min_idle_ms")

    def __init__(
        self,
        *,
        stream: str,
        group: str,
        handler: str | Handler,
        min_idle_ms: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(stream=stream, group=group, handler=handler, **kwargs)
        self.min_idle_ms = min_idle_ms

    def task_drain(self, hook: RedisStreamsHook, task_try: TaskTry) -> StaleDrain:
        """The stale messages of the stream."""
        return StaleDrain(
            stream=str(self.stream),
            min_idle_ms=optional_number("min_idle_ms", self.min_idle_ms, int),
            **self.drain_arguments(hook, task_try),
        )

    def execute(self, context: Context) -> Report:
        """Claim, handle and ack; over `max_deliveries` a message becomes a dead letter."""
        return self.drain_once(context)
