"""BacklogSensor: waits until a group has enough before it, and consumes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.refusals import refused_at_once
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from airflow_provider_conquiet.triggers.thresholds import Backlog, Thresholds, stream_or_topic
from conquiet import peek_backlog

if TYPE_CHECKING:
    from airflow.sdk import Context


class BacklogSensor(BaseSensorOperator):
    """Succeeds when a threshold is reached and returns names, counts and an age; only looks.

    Neither stream nor group need to be there, and neither is made.

    Args:
        stream, topic: one of the two; the partitions of a topic are added up.
        min_lag, min_pending, min_age_s: any one that is reached is enough; `min_lag=None` for the others.
        deferrable: look from the triggerer, every `poke_interval`, without a worker slot.
    """

    template_fields: Sequence[str] = ("stream", "topic", "group", "redis_streams_conn_id")
    ui_color = "#e3ecf5"

    def __init__(
        self,
        *,
        group: str,
        stream: str | None = None,
        topic: str | None = None,
        min_lag: int | None = 1,
        min_pending: int | None = None,
        min_age_s: float | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        stream_or_topic(stream, topic)
        Thresholds(min_lag=min_lag, min_pending=min_pending, min_age_s=min_age_s)
        self.group = group
        self.stream = stream
        self.topic = topic
        self.min_lag = min_lag
        self.min_pending = min_pending
        self.min_age_s = min_age_s
        self.deferrable = deferrable
        self.redis_streams_conn_id = redis_streams_conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        thresholds = Thresholds(min_lag=self.min_lag, min_pending=self.min_pending, min_age_s=self.min_age_s)
        backlog = self._look(thresholds.count_limit)
        return PokeReturnValue(thresholds.are_reached_by(backlog), thresholds.event_of(backlog))

    def execute(self, context: Context) -> Any:
        """Look until it is enough; with `deferrable`, once here and then from the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if found.is_done:
            return found.xcom_value
        trigger = BacklogTrigger(
            stream=self.stream,
            topic=self.topic,
            group=self.group,
            redis_streams_conn_id=self.redis_streams_conn_id,
            min_lag=self.min_lag,
            min_pending=self.min_pending,
            min_age_s=self.min_age_s,
            poll_interval_s=self.poke_interval or 1.0,
            ring_again_s=None,
        )
        return self.defer(
            trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout)
        )

    def execute_complete(
        self, context: Context, event: dict[str, Any] | None = None, **_: Any
    ) -> dict[str, Any] | None:
        """Return what the triggerer saw."""
        return event

    def _look(self, count_limit: int) -> Backlog:
        kind, name = stream_or_topic(self.stream, self.topic)
        with RedisStreamsHook(self.redis_streams_conn_id) as hook:
            with refused_at_once():
                client = hook.get_conn()
            streams = [name]
            if kind == "topic":
                topic = hook.topic(name)
                streams = [topic.keys.stream(partition) for partition in topic.partitions]
            parts = [
                peek_backlog(client, stream=stream, group=self.group, count_limit=count_limit)
                for stream in streams
            ]
        return Backlog.of(kind, name, self.group, parts)
