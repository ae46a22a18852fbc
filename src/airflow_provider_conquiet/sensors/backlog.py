"""BacklogSensor: waits until a group has a backlog, and consumes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_conquiet.arguments import failing_at_once, stream_or_topic
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

    template_fields: Sequence[str] = ("stream", "topic", "group", "redis_streams_conn_id")
    ui_color = "#e3ecf5"
    operator_extra_links = (DocumentationLink(),)

    def __init__(
        self,
        *,
        group: str,
        stream: str | None = None,
        topic: str | None = None,
        min_lag: int | None = _DEFAULTS.min_lag,
        min_pending: int | None = _DEFAULTS.min_pending,
        min_age_s: float | None = _DEFAULTS.min_age_s,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        stream_or_topic(stream, topic)
        self.thresholds = Thresholds(min_lag=min_lag, min_pending=min_pending, min_age_s=min_age_s)
        self.group = group
        self.stream = stream
        self.topic = topic
        self.deferrable = deferrable
        self.redis_streams_conn_id = redis_streams_conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        kind, name = stream_or_topic(self.stream, self.topic)
        with RedisStreamsHook(self.redis_streams_conn_id) as hook:
            with failing_at_once():
                hook.get_conn()
            streams = [name]
            if kind == "topic":
                topic = hook.topic(name)
                streams = [topic.keys.stream(partition) for partition in topic.partitions]
            limit = self.thresholds.count_limit
            parts = [hook.backlog(key, self.group, count_limit=limit) for key in streams]
        backlog = total_backlog(name, self.group, parts)
        event = self.thresholds.event_of(kind, backlog)
        return PokeReturnValue(self.thresholds.are_reached_by(backlog), event)

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
            **asdict(self.thresholds),
        )
        timeout = timedelta(seconds=self.timeout)
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def execute_complete(
        self, context: Context, event: dict[str, Any] | None = None, **_: Any
    ) -> dict[str, Any] | None:
        """Return the trigger's event."""
        return event
