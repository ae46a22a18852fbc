"""TrimOperator: removes old entries, never one that some group has not finished, or old dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.arguments import failing_at_once, optional_number, stream_or_topic, truth
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.reports import Report, update_outlets
from conquiet.mq import DeadLetterPolicy, DeadLetters, MqAdmin

if TYPE_CHECKING:
    from airflow.sdk import Context


class TrimOperator(BaseOperator):
    """Trims a stream or every partition of a topic to what the retention keeps.

    Args:
        stream, topic: one of the two.
        retention_length: entries to keep in each stream.
        retention_ms: age below which entries are kept; without both, the topic's own policy counts.
        dead_letters: trim the dead letters instead of the messages.
        redis_streams_conn_id: a connection of type `redis_streams`.

    Examples:
        >>> with DAG("trim", schedule="@daily", catchup=False):
        ...     trimmed = TrimOperator(task_id="trim", stream="orders", retention_length=100_000)
    """

    template_fields: Sequence[str] = (
        "stream",
        "topic",
        "retention_length",
        "retention_ms",
        "dead_letters",
        "redis_streams_conn_id",
    )
    ui_color = "#ebe3dc"
    operator_extra_links = (DocumentationLink(),)

    def __init__(
        self,
        *,
        stream: str | None = None,
        topic: str | None = None,
        retention_length: int | str | None = None,
        retention_ms: int | str | None = None,
        dead_letters: bool | str = False,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        stream_or_topic(stream, topic)
        self.stream = stream
        self.topic = topic
        self.retention_length = retention_length
        self.retention_ms = retention_ms
        self.dead_letters = dead_letters
        self.redis_streams_conn_id = redis_streams_conn_id

    def execute(self, context: Context) -> Report:
        """Trim, and return how many entries were removed, of messages also by partition."""
        name = str(self.topic or self.stream)
        with failing_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            fields = ("retention_length", "retention_ms")
            given = {field: optional_number(field, getattr(self, field), int) for field in fields}
            keep = {field: value for field, value in given.items() if value is not None}
            if truth("dead_letters", self.dead_letters):
                letters = DeadLetters(hook.topic(name))
                removed = letters.trim(DeadLetterPolicy(**keep) if keep else None)
                self.log.info("deleted %s dead letters of %r, neither replayed nor purged", removed, name)
                report: Report = {"name": name, "removed": removed}
            else:
                report = self._trim_messages(MqAdmin(hook.get_conn()), name, keep)
            update_outlets(context, self.outlets, hook.asset_uri(name), report)
            return report

    def _trim_messages(self, admin: MqAdmin, name: str, keep: dict[str, Any]) -> Report:
        trims = admin.trim(name, **keep)
        for trim in trims:
            if trim.missing_groups:
                self.log.warning(
                    "nothing was removed from partition %s of %r: groups %s have not begun there",
                    *(trim.partition, name, list(trim.missing_groups)),
                )
        return {
            "name": name,
            "removed": sum(trim.removed for trim in trims),
            "removed_by_partition": {str(trim.partition): trim.removed for trim in trims},
        }
