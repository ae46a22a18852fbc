"""ReplayDeadLettersOperator: dead letters of a topic, back to their partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.refusals import refused_at_once, seconds, truth, whole_number
from airflow_provider_conquiet.reports import Report
from conquiet.mq import DeadLetters, TopicError

if TYPE_CHECKING:
    from airflow.sdk import Context

_SAMPLES = 5


class ReplayDeadLettersOperator(BaseOperator):
    """Replays the dead letters that are there when the task begins, oldest first, each of them once.

    Args:
        topic: whose dead letters.
        group: only letters that this group gave up.
        error_type: only letters of this exception, `NoStock` or `orders.errors.NoStock`.
        since_ms, until_ms: only letters of this time, ms since the epoch.
        limit: how many at the most.
        per_second: how fast; without it as fast as it goes.
        to_all_groups: give them to every group of the topic, and not only to the one that gave them up.
        is_dry_run: only count.
        redis_streams_conn_id: a connection of type `redis_streams`.
    """

    template_fields: Sequence[str] = (
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

    def __init__(
        self,
        *,
        topic: str,
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

    def execute(self, context: Context) -> Report:
        """Replay, and return how many letters were replayed, gone and refused."""
        with refused_at_once(), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            topic = hook.topic(self.topic)
            if topic.layout == "legacy":
                raise TopicError(self.topic, "is not there, so it has no dead letters")
            letters = DeadLetters(topic)
            report = letters.replay_all(**self._arguments())
            hook.record_output(self.topic)
            return {
                "topic": self.topic,
                "replayed": report.replayed,
                "gone": len(report.gone),
                "refused": len(report.refused),
                "refused_ids": list(report.refused[:_SAMPLES]),
                "is_dry_run": report.is_dry_run,
                "remaining": letters.count(),
            }

    def _arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "dry_run": truth("is_dry_run", self.is_dry_run),
            "to_all_groups": truth("to_all_groups", self.to_all_groups),
        }
        for name in ("group", "error_type"):
            if _is_given(getattr(self, name)):
                given[name] = getattr(self, name)
        for name in ("since_ms", "until_ms", "limit"):
            if _is_given(getattr(self, name)):
                given[name] = whole_number(name, getattr(self, name))
        if _is_given(self.per_second):
            given["per_second"] = seconds("per_second", self.per_second)
        return given


def _is_given(value: object) -> bool:
    # What a template of an empty Param renders to.
    return value not in (None, "", "None")
