"""PruneConsumersOperator: removes the names of dead consumers, and no pending message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.arguments import failing_at_once, number, stream_or_topic, truth
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.reports import MAX_SAMPLES, Report, update_outlets
from conquiet.mq import MqAdmin

if TYPE_CHECKING:
    from airflow.sdk import Context


class PruneConsumersOperator(BaseOperator):
    """Deletes the consumers of a group that have nothing pending, checked in the same script.

    Args:
        stream, topic: one of the two.
        group: the consumer group.
        min_idle_ms: for a stream, leave consumers that were active within this time; of a topic, those that
            are alive are left.
        is_dry_run: only count.
        redis_streams_conn_id: a connection of type `redis_streams`.

    Examples:
        >>> with DAG("prune", schedule="@daily", catchup=False):
        ...     pruned = PruneConsumersOperator(task_id="prune", stream="orders", group="billing")
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
    operator_extra_links = (DocumentationLink(),)

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
        stream_or_topic(stream, topic)
        self.stream = stream
        self.topic = topic
        self.group = group
        self.min_idle_ms = min_idle_ms
        self.is_dry_run = is_dry_run
        self.redis_streams_conn_id = redis_streams_conn_id

    def execute(self, context: Context) -> Report:
        """Prune, and return how many names were removed and a few of them."""
        with failing_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            is_dry_run = truth("is_dry_run", self.is_dry_run)
            if self.topic is not None:
                admin = MqAdmin(hook.get_conn())
                removed = admin.prune_consumers(self.topic, self.group, dry_run=is_dry_run)
                pruned = [consumer.name for consumer in removed]
            else:
                stream, min_idle_ms = str(self.stream), number("min_idle_ms", self.min_idle_ms, int)
                consumers = hook.backlog(stream, self.group).consumers
                pruned = [one.name for one in consumers if one.pending == 0 and one.idle_ms >= min_idle_ms]
                if pruned and not is_dry_run:
                    queue = hook.queue(stream, self.group, "prune")
                    pruned = [name for name in pruned if queue.remove_consumer(name)]
            report: Report = {
                "group": self.group,
                "pruned": len(pruned),
                "names": pruned[:MAX_SAMPLES],
                "is_dry_run": is_dry_run,
            }
            update_outlets(context, self.outlets, hook.asset_uri(str(self.topic or self.stream)), report)
            return report
