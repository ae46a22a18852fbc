"""RunState: whether the other tasks of a DAG run have ended, and so whether the run will succeed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    leaves: Sequence[str]
    #: Other tasks that wait as this one does: they do not wait for one another.
    beside: Sequence[str] = ()
    #: Tasks whose own name is that of another one with an index, which Airflow gives to mapped tasks.
    with_numbers: Sequence[str] = ()

    @classmethod
    def of_context(cls, context: Context, waiting: type) -> Self:
        """Of the run that the task is in.

        Args:
            waiting: the class of tasks that ask.

        Raises:
            ValueError: another task waits for this one, which waits for it.
        """
        ti, dag = context["ti"], context["dag"]
        beside = {
            task_id
            for task_id, task in dag.task_dict.items()
            if task_id != ti.task_id and issubclass(getattr(task, "operator_class", type(task)), waiting)
        }
        tasks = {
            task_id: task
            for task_id, task in dag.task_dict.items()
            if task_id != ti.task_id and task_id not in beside
        }
        behind = sorted(dag.task_dict[ti.task_id].downstream_task_ids & tasks.keys())
        if behind:
            raise ValueError(
                f"task {ti.task_id!r} waits for all other tasks of its run, and {', '.join(behind)} for it: "
                "no task can be behind it"
            )

        def decides(task: Any) -> bool:
            return not task.is_teardown or task.on_failure_fail_dagrun

        leaves = [
            task_id
            for task_id, task in tasks.items()
            if decides(task)
            and not any(decides(tasks[behind]) for behind in task.downstream_task_ids if behind in tasks)
        ]
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            leaves=sorted(leaves),
            beside=sorted(beside),
            with_numbers=sorted(name for name in dag.task_dict if _of_index(name) in dag.task_dict),
        )

    def will_succeed(self) -> bool | None:
        """As Airflow will decide; `None` while some task has not ended. Asks Airflow, and blocks."""
        return self.end_of(self._states())

    def end_when_killed(self) -> bool | None:
        """As `will_succeed`, of a run that somebody has ended, and with it this task. Asks and blocks too."""
        return self.killed_end_of(self._states())

    def end_of(self, states: Mapping[str, Any]) -> bool | None:
        """As `will_succeed`, by the state of each task; those of mapped ones end in their index."""
        # Of a run that was marked as failed, or took too long, the tasks that were left are skipped, and this
        # one is ended with them: that must not be taken for a success.
        if not _ASKING & self._states_of([self.task_id], states) or not self._have_others_ended(states):
            return None
        return not _FAILED & self._states_of(self.leaves, states)

    def killed_end_of(self, states: Mapping[str, Any]) -> bool | None:
        """As `end_when_killed`, by the state of each task: a success if it was marked as one."""
        if not self._have_others_ended(states):
            return None
        is_marked = self._states_of([self.task_id], states) == {"success"}
        return is_marked and not _FAILED & self._states_of(self.leaves, states)

    def _have_others_ended(self, states: Mapping[str, Any]) -> bool:
        waiting = [self.task_id, *self.beside]
        return all(_text(state) in _ENDED for name, state in states.items() if not self._is_of(name, waiting))

    def _states_of(self, tasks: Sequence[str], states: Mapping[str, Any]) -> set[str]:
        return {_text(state) for name, state in states.items() if self._is_of(name, tasks)}

    def _is_of(self, name: str, tasks: Sequence[str]) -> bool:
        return name in tasks or (name not in self.with_numbers and _of_index(name) in tasks)

    def _states(self) -> Mapping[str, Any]:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        found = RuntimeTaskInstance.get_task_states(dag_id=self.dag_id, run_ids=[self.run_id])
        states: Mapping[str, Any] = found.get(self.run_id, {})
        return states


def _text(state: Any) -> str:
    return str(getattr(state, "value", state))


def _of_index(name: str) -> str | None:
    """The task whose index the name may end in, as Airflow names the states of mapped tasks."""
    task_id, _, index = name.rpartition("_")
    return task_id if index.isdigit() else None
