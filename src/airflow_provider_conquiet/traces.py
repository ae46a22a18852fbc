"""The span of a task: Airflow's own where it makes one, else one of ours."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from airflow_provider_conquiet.attempts import TaskTry
from conquiet.tracing import working

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_span(context: Context) -> AbstractContextManager[None]:
    """What a task sends and handles inside belongs to its span; nothing while tracing is off."""
    task_try = TaskTry.of_context(context)
    attributes = {
        "airflow.dag_id": task_try.dag_id,
        "airflow.task_id": task_try.task_id,
        "airflow.dag_run.run_id": task_try.run_id,
        "airflow.task_instance.try_number": task_try.try_number,
        "airflow.task_instance.map_index": task_try.map_index,
    }
    # The scheduler's context of this task instance, in Airflows that know one.
    carrier = getattr(context["ti"], "context_carrier", None)
    return working(f"task {task_try.dag_id}.{task_try.task_id}", attributes, carrier=carrier)
