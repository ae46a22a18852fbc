"""Extra links: where a task's buttons lead to."""

from __future__ import annotations

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
_MAINTENANCE = "replaydeadlettersoperator-trimoperator-pruneconsumersoperator"


def target_of(operator: BaseOperator) -> str:
    """Where the button of an operator leads to: the one place that knows.

    To its topic, stream or queue of tasks on the page, or without the page to the operator's documentation.
    """
    if is_page_enabled():
        name = getattr(operator, "topic", None) or getattr(operator, "stream", None)
        if isinstance(name, str) and name:
            return page_address("topic", name=name)
        queue = getattr(operator, "task_queue", None)
        if isinstance(queue, str) and queue:
            return page_address("queue", name=queue)
    return f"{_DOCS}#{_SECTIONS.get(type(operator).__name__, _MAINTENANCE)}"


class DocumentationLink(BaseOperatorLink):
    """From a task to what it reads or fills: its topic, stream or queue on the page."""

    name = "conquiet"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """As `target_of`."""
        return target_of(operator)
