"""Extra links: where a task's buttons lead to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from airflow_provider_conquiet.plugins.page import is_page_enabled, page_address

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

_DOCS = "https://github.com/conquiet/conquiet/blob/main/docs/airflow.md"
#: The section of each operator, by the name of its class.
_SECTIONS = {
    "EnqueueOperator": "enqueueoperator-and-taskenqueue",
    "EnqueueDecoratedOperator": "enqueueoperator-and-taskenqueue",
    "DrainOperator": "drainoperator-and-taskdrain",
    "DrainDecoratedOperator": "drainoperator-and-taskdrain",
    "ClaimStaleOperator": "claimstaleoperator",
    # It links to the page on Spark's jobs.
    "SparkPublishOperator": "conquiet-for-airflow",
    "TakeOperator": "one-run-for-some-messages",
    "AckByRunSensor": "one-run-for-some-messages",
    "TaskOperator": "taskoperator-and-taskconquiet_task",
    "TaskDecoratedOperator": "taskoperator-and-taskconquiet_task",
    "BacklogSensor": "sensors",
    "DrainSensor": "sensors",
    "MessageSensor": "sensors",
}
#: The attributes of operators that name what they read or fill, and the view of the page that shows it.
_VIEWS = {
    "topic": "topic",
    "stream": "topic",
    "to_topic": "topic",
    "to_stream": "topic",
    "taken": "topic",
    "task_queue": "queue",
}
_MAINTENANCE = "replaydeadlettersoperator-trimoperator-pruneconsumersoperator"


def target_of(operator: BaseOperator) -> str:
    """Where the button of an operator leads to: the one place that knows.

    To its topic, stream or queue of tasks on the page, or without the page to the operator's documentation.
    """
    if is_page_enabled():
        for attribute, view in _VIEWS.items():
            name = getattr(operator, attribute, None)
            if attribute == "taken" and isinstance(name, Mapping):
                name = name.get("stream")
            if isinstance(name, str) and name:
                return page_address(view, name=name)
    return f"{_DOCS}#{_SECTIONS.get(type(operator).__name__, _MAINTENANCE)}"


class DocumentationLink(BaseOperatorLink):
    """From a task to what it reads or fills: its topic, stream or queue on the page."""

    name = "conquiet"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """As `target_of`."""
        return target_of(operator)
