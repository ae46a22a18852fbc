"""One try of one task instance, and the names that its retries can find again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from airflow.sdk import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTry:
    """Which task instance runs, and for which time."""

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
    def consumer_name(self) -> str:
        """Names the try in its consumer group, where later tries look for what it left."""
        return f"airflow:{self.task_instance}:{self.try_number}"

    @property
    def earlier(self) -> list[str]:
        """The consumer names of the tries before this one, oldest first."""
        return [replace(self, try_number=number).consumer_name for number in range(1, self.try_number)]

    def others_among(self, names: Iterable[str]) -> list[str]:
        """The other tries of this task instance that a group knows, oldest first.

        Airflow runs one try of a task instance at a time: the others are over.
        """
        prefix = f"airflow:{self.task_instance}:"
        # Digits alone: a run id may end in what looks like another map index.
        numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        others = sorted({int(number) for number in numbers if number.isdigit()} - {self.try_number})
        return [replace(self, try_number=number).consumer_name for number in others]
