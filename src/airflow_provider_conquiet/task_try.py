"""One try of one task instance: its names in Redis, and its span."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from conquiet.tracing import working

if TYPE_CHECKING:
    from airflow.sdk import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTry:
    """Which task instance runs, and which of its tries."""

    dag_id: str
    run_id: str
    task_id: str
    #: -1 unless the task is mapped.
    map_index: int
    try_number: int

    @classmethod
    def of_context(cls, context: Context) -> Self:
        """The try that this context belongs to."""
        ti = context["ti"]
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
        )

    @property
    def task_instance(self) -> str:
        """The same for every try of a task instance, and of no other one."""
        return f"{self.dag_id}:{self.task_id}:{self.run_id}:{self.map_index}"

    @property
    def dedupe_id(self) -> str:
        """Names what the task instance sends, so that a retry sends nothing twice."""
        return f"airflow:{self.task_instance}"

    @property
    def consumer_name(self) -> str:
        """Names the try in its consumer group, where later tries find what it left pending."""
        return f"airflow:{self.task_instance}:{self.try_number}"

    def others_among(self, names: Iterable[str]) -> list[str]:
        """The consumers among these that are other tries of this task instance, oldest first.

        Airflow runs one try of a task instance at a time: the others have ended.
        """
        prefix = f"airflow:{self.task_instance}:"
        # Digits alone: a run id may end in what looks like another map index.
        numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        tries = {int(number) for number in numbers if number.isascii() and number.isdigit()}
        others = tries - {self.try_number}
        return [f"{prefix}{number}" for number in sorted(others)]


def task_span(context: Context) -> AbstractContextManager[None]:
    """The task's span, Airflow's own where there is one; does nothing while tracing is off."""
    task_try = TaskTry.of_context(context)
    attributes = {
        "airflow.dag_id": task_try.dag_id,
        "airflow.task_id": task_try.task_id,
        "airflow.dag_run.run_id": task_try.run_id,
        "airflow.task_instance.try_number": task_try.try_number,
        "airflow.task_instance.map_index": task_try.map_index,
    }
    # The scheduler's context of this task instance; not every Airflow has one.
    carrier = getattr(context["ti"], "context_carrier", None)
    return working(f"task {task_try.dag_id}.{task_try.task_id}", attributes, carrier=carrier)
