"""ReplayDeadLettersOperator: dead letters of a topic or stream, back to the group that gave them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.arguments import failing_at_once, number, stream_or_topic, truth
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.lineage import Lineage
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.reports import MAX_SAMPLES, Report, update_outlets
from conquiet.mq import DeadLetters

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


class ReplayDeadLettersOperator(BaseOperator):
    """Replays the dead letters that are there when the task begins, oldest first, each of them once.

    Args:
        stream, topic: one of the two.
        group: only letters that this group gave up.
        error_type: only letters of this exception, `NoStock` or `orders.errors.NoStock`.
        since_ms, until_ms: only letters of this time, ms since the epoch.
        limit: how many at the most.
        per_second: how many in a second at the most.
        to_all_groups: give them to every group, and not only to the one that gave them up.
        is_dry_run: only count.
        redis_streams_conn_id: a connection of type `redis_streams`.

    Examples:
        >>> with DAG("replay", schedule=None):
        ...     replayed = ReplayDeadLettersOperator(task_id="replay", topic="orders", limit=100)
    """

    template_fields: Sequence[str] = (
        "stream",
        "topic",
        "group",
        "error_type",
        "since_ms",
        "until_ms",
        "limit",
        "per_second",
        "to_all_groups",
        "is_dry_run",
        "redis_streams_conn_id",
    )
    ui_color = "#ebe3dc"
    operator_extra_links = (DocumentationLink(),)

    #: What the task did, for OpenLineage.
    lineage: Lineage | None = None

    def __init__(
        self,
        *,
        stream: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        error_type: str | None = None,
        since_ms: int | str | None = None,
        until_ms: int | str | None = None,
        limit: int | str | None = None,
        per_second: float | str | None = None,
        to_all_groups: bool | str = False,
        is_dry_run: bool | str = False,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        stream_or_topic(stream, topic)
        self.stream = stream
        self.topic = topic
        self.group = group
        self.error_type = error_type
        self.since_ms = since_ms
        self.until_ms = until_ms
        self.limit = limit
        self.per_second = per_second
        self.to_all_groups = to_all_groups
        self.is_dry_run = is_dry_run
        self.redis_streams_conn_id = redis_streams_conn_id

    def get_openlineage_facets_on_complete(self, _task_instance: object) -> OperatorLineage[Any, Any] | None:
        """Outputs and counts, for Airflow's OpenLineage provider."""
        return None if self.lineage is None else self.lineage.facets()

    def execute(self, context: Context) -> Report:
        """Replay, and return how many letters were replayed, and how many were removed before or refused."""
        kinds: dict[str, type] = {"since_ms": int, "until_ms": int, "limit": int, "per_second": float}
        with failing_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            kind, name = stream_or_topic(self.stream, self.topic)
            arguments: dict[str, Any] = {
                "dry_run": truth("is_dry_run", self.is_dry_run),
                "to_all_groups": truth("to_all_groups", self.to_all_groups),
            }
            for field in ("group", "error_type", *kinds):
                value = getattr(self, field)
                # A template of an empty Param is rendered to one of these.
                if value not in (None, "", "None"):
                    arguments[field] = number(field, value, kinds[field]) if field in kinds else value
            letters = DeadLetters(hook.topic(name))
            report = letters.replay_all(**arguments)
            hook.record_output(name)
            replay = {
                kind: name,
                "replayed": report.replayed,
                "not_found": len(report.not_found),
                "refused": len(report.refused),
                "refused_ids": list(report.refused[:MAX_SAMPLES]),
                "is_dry_run": report.is_dry_run,
                "remaining": letters.count(),
            }
            uri = hook.asset_uri(name)
            update_outlets(context, self.outlets, uri, replay)
            self.lineage = Lineage(outputs={uri: 0 if report.is_dry_run else report.replayed})
            return replay
