"""PruneConsumersOperator: removes the names of consumers that are gone, and loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.refusals import refused_at_once, truth, whole_number
from airflow_provider_conquiet.reports import Report
from conquiet.mq import MqAdmin

if TYPE_CHECKING:
    from airflow.sdk import Context

_SAMPLES = 5


class PruneConsumersOperator(BaseOperator):
    """Deletes the consumers of a group that have nothing pending, checked in the same script.

    Args:
        stream, topic: one of both.
        group: the consumer group.
        min_idle_ms: for a stream, leave consumers that were active within this time; of a topic, those that
            are alive are left.
        is_dry_run: only count.
        redis_streams_conn_id: a connection of type `redis_streams`.
    """

    template_fields: Sequence[str] = (
        "stream",
        "topic",
        "group",
        "min_idle_ms",
        "is_dry_run",
        "redis_streams_conn_id",
    )
    ui_color = "#ebe3dc"

    def __init__(
        self,
        *,
        group: str,
        stream: str | None = None,
        topic: str | None = None,
        min_idle_ms: int | str = 3_600_000,
        is_dry_run: bool | str = False,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (stream is None) == (topic is None):
            raise ValueError(
                f"task {self.task_id!r} prunes a group of a stream or of a topic; got {stream!r}, {topic!r}"
            )
        self.stream = stream
        self.topic = topic
        self.group = group
        self.min_idle_ms = min_idle_ms
        self.is_dry_run = is_dry_run
        self.redis_streams_conn_id = redis_streams_conn_id

    def execute(self, context: Context) -> Report:
        """Prune, and return how many names went and a few of them."""
        with refused_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            is_dry_run = truth("is_dry_run", self.is_dry_run)
            pruned = self._of_stream(hook, is_dry_run) if self.stream else self._of_topic(hook, is_dry_run)
        return {
            "group": self.group,
            "pruned": len(pruned),
            "names": pruned[:_SAMPLES],
            "is_dry_run": is_dry_run,
        }

    def _of_stream(self, hook: RedisStreamsHook, is_dry_run: bool) -> list[str]:
        min_idle_ms = whole_number("min_idle_ms", self.min_idle_ms)
        known = hook.backlog(str(self.stream), self.group).consumers
        idle = [one.name for one in known if one.pending == 0 and one.idle_ms >= min_idle_ms]
        if is_dry_run or not idle:
            return idle
        queue = hook.queue(str(self.stream), self.group, "prune")
        return [name for name in idle if queue.remove_consumer(name)]

    def _of_topic(self, hook: RedisStreamsHook, is_dry_run: bool) -> list[str]:
        admin = MqAdmin(hook.get_conn())
        pruned = admin.prune_consumers(str(self.topic), self.group, dry_run=is_dry_run)
        return [consumer.name for consumer in pruned]
