"""RunState: whether the other tasks of a DAG run have ended, and so whether the run will succeed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from airflow.sdk import Context

_ENDED = {"success", "failed", "skipped", "upstream_failed", "removed"}
_FAILED = {"failed", "upstream_failed"}
#: What a task is in while it asks.
_ASKING = {"running", "deferred"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Which tasks of a run decide about it, as Airflow does: those that have no other one behind them."""

    dag_id: str
    run_id: str
    #: The task that asks: it does not wait for itself.
    task_id: str
    leaves: tuple[str, ...]

    @classmethod
    def of_context(cls, context: Context) -> Self:
        """Of the run that the task is in."""
        ti = context["ti"]
        tasks = {task_id: task for task_id, task in context["dag"].task_dict.items() if task_id != ti.task_id}

        def decides(task: Any) -> bool:
            return not task.is_teardown or task.on_failure_fail_dagrun

        leaves = [
            task_id
            for task_id, task in tasks.items()
            if decides(task)
            and not any(decides(tasks[behind]) for behind in task.downstream_task_ids if behind in tasks)
        ]
        return cls(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, leaves=tuple(sorted(leaves)))

    def will_succeed(self) -> bool | None:
        """As Airflow will decide; `None` while some task has not ended. Asks Airflow, and blocks."""
        return self.end_of(self._states())

    def have_others_ended(self) -> bool:
        """Whether all but this task have ended, however. Asks Airflow, and blocks."""
        return self._have_ended(self._states())

    def end_of(self, states: Mapping[str, Any]) -> bool | None:
        """As `will_succeed`, by the state of each task; those of mapped ones end in their index."""
        texts = {name: _text(state) for name, state in states.items()}
        # Of a run that was marked as failed, or took too long, the tasks that were left are skipped, and this
        # one is ended with them: that must not be taken for a success.
        is_asking = any(texts[name] in _ASKING for name in texts if _is_of(name, [self.task_id]))
        if not is_asking or not self._have_ended(texts):
            return None
        return not any(state in _FAILED for name, state in texts.items() if _is_of(name, self.leaves))

    def _have_ended(self, states: Mapping[str, Any]) -> bool:
        others = {_text(state) for name, state in states.items() if not _is_of(name, [self.task_id])}
        return others <= _ENDED

    def _states(self) -> Mapping[str, Any]:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        found = RuntimeTaskInstance.get_task_states(dag_id=self.dag_id, run_ids=[self.run_id])
        states: Mapping[str, Any] = found.get(self.run_id, {})
        return states


def _text(state: Any) -> str:
    return str(getattr(state, "value", state))


def _is_of(name: str, tasks: Iterable[str]) -> bool:
    task_id, _, index = name.rpartition("_")
    return any(name == one or (task_id == one and index.isdigit()) for one in tasks)
