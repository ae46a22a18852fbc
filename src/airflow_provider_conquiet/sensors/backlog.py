"""BacklogSensor: waits until a group has a backlog, and consumes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_conquiet.airflow_names import conf
from airflow_provider_conquiet.arguments import (
    failing_at_once,
    is_rendered_later,
    optional_number,
    stream_or_topic,
)
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from airflow_provider_conquiet.triggers.thresholds import Thresholds
from conquiet.mq import total_backlog

if TYPE_CHECKING:
    from airflow.sdk import Context

_DEFAULTS = Thresholds()


class BacklogSensor(BaseSensorOperator):
    """Succeeds when a threshold is reached and returns names, counts and an age; only reads.

    Neither stream nor group need to exist, and neither is created.

    Args:
        stream, topic: one of the two; the partitions of a topic are added up.
        min_lag, min_pending, min_age_s: any one that is reached is enough; `min_lag=None` for the others.
        deferrable: poll from the triggerer, every `poke_interval`, without a worker slot.

    Examples:
        >>> with DAG("when_there_is_work", schedule="@hourly", catchup=False):
        ...     waiting = BacklogSensor(task_id="wait", stream="orders", group="billing", min_lag=100)
    """

    template_fields: Sequence[str] = (
        "stream",
        "topic",
        "group",
        "min_lag",
        "min_pending",
        "min_age_s",
        "redis_streams_conn_id",
    )
    ui_color = "#e3ecf5"
    operator_extra_links = (DocumentationLink(),)

    def __init__(
        self,
        *,
        group: str,
        stream: str | None = None,
        topic: str | None = None,
        min_lag: int | str | None = _DEFAULTS.min_lag,
        min_pending: int | str | None = _DEFAULTS.min_pending,
        min_age_s: float | str | None = _DEFAULTS.min_age_s,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        stream_or_topic(stream, topic)
        self.min_lag = min_lag
        self.min_pending = min_pending
        self.min_age_s = min_age_s
        if not is_rendered_later(min_lag, min_pending, min_age_s):
            # A mistake is one when the DAG is read.
            self.thresholds()
        self.group = group
        self.stream = stream
        self.topic = topic
        self.deferrable = deferrable
        self.redis_streams_conn_id = redis_streams_conn_id

    def thresholds(self) -> Thresholds:
        """What is waited for, from the arguments as they are after templates were rendered."""
        return Thresholds(
            min_lag=optional_number("min_lag", self.min_lag, int),
            min_pending=optional_number("min_pending", self.min_pending, int),
            min_age_s=optional_number("min_age_s", self.min_age_s, float),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Read the backlog once."""
        kind, name = stream_or_topic(self.stream, self.topic)
        with RedisStreamsHook(self.redis_streams_conn_id) as hook:
            with failing_at_once():
                thresholds = self.thresholds()
                hook.get_conn()
            streams = [name]
            if kind == "topic":
                topic = hook.topic(name)
                streams = [topic.keys.stream(partition) for partition in topic.partitions]
            limit = thresholds.count_limit
            parts = [hook.backlog(key, self.group, count_limit=limit) for key in streams]
        backlog = total_backlog(name, self.group, parts)
        return PokeReturnValue(thresholds.are_reached_by(backlog), thresholds.event_of(kind, backlog))

    def execute(self, context: Context) -> Any:
        """Poke until a threshold is reached; with `deferrable`, once here and then from the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        result = self.poke(context)
        if result.is_done:
            return result.xcom_value
        trigger = BacklogTrigger(
            stream=self.stream,
            topic=self.topic,
            group=self.group,
            redis_streams_conn_id=self.redis_streams_conn_id,
            poll_interval_s=self.poke_interval or 1.0,
            ring_again_s=None,
            **asdict(self.thresholds()),
        )
        timeout = timedelta(seconds=self.timeout)
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def execute_complete(
        self, context: Context, event: dict[str, Any] | None = None, **_: Any
    ) -> dict[str, Any] | None:
        """Return the trigger's event."""
        return event
