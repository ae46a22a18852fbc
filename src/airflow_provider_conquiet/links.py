"""Extra links: where a task's buttons lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

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
    """Where the button of an operator leads to: the one place that knows."""
    return f"{_DOCS}#{_SECTIONS.get(type(operator).__name__, _MAINTENANCE)}"


class DocumentationLink(BaseOperatorLink):
    """From a task to what its operator does, and what its report means."""

    name = "conquiet"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The operator's own section."""
        return target_of(operator)
