"""AckByRunSensor: acks what a run has taken when the run succeeds, and hands it back when it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_conquiet.arguments import failing_at_once
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.reports import update_outlets
from airflow_provider_conquiet.run_messages import RunMessages
from airflow_provider_conquiet.run_state import RunState
from airflow_provider_conquiet.triggers.run import RunTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class AckByRunSensor(BaseSensorOperator):
    """Waits until all other tasks of the run have ended; keeps the run's messages alive meanwhile.

    Then it acks them if the run succeeds, else hands them back, for the next run to take, and succeeds
    itself: which of the two is decided by the last tasks of the DAG, as Airflow does. It needs no listener.

    A DAG may have one for each of its `TakeOperator`s; they do not wait for one another.

    Args:
        taken: the output of a `TakeOperator` of the run; no task may be behind this one, which waits for all.
        deferrable: `False` asks from a worker and gives the slot back in between.
        poke_interval: how often the states of the run's tasks are read, in seconds.
        mode: as of Airflow's sensors, where it does not defer.

    Examples:
        >>> from airflow_provider_conquiet.operators.take import TakeOperator
        >>> with DAG("ship_parcels", schedule="* * * * *", catchup=False):
        ...     taken = TakeOperator(task_id="take", stream="parcels", group="shipping")
        ...     acked = AckByRunSensor(task_id="ack", taken=taken.output, retries=2)
    """

    template_fields: Sequence[str] = ("taken",)
    ui_color = "#e3ecf5"
    operator_extra_links = (DocumentationLink(),)

    def __init__(
        self,
        *,
        taken: Any,
        deferrable: bool = True,
        poke_interval: float = 5.0,
        mode: str = "reschedule",
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, mode=mode, **kwargs)
        self.taken = taken
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Wait in the triggerer; `dag.test()`, where a deferred task holds up all others, reschedules."""
        if not self.deferrable or _is_dag_test():
            return super().execute(context)
        # First here: a task that is resumed as soon as it is deferred may be failed by Airflow's scheduler.
        result = self.poke(context)
        if result.is_done:
            return result.xcom_value
        state, messages = self._run(context)
        trigger = RunTrigger(
            state=asdict(state), messages=asdict(messages), poll_interval_s=self.poke_interval
        )
        timeout = timedelta(seconds=self.timeout)
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def poke(self, context: Context) -> PokeReturnValue:
        """Renew the messages, or settle them if the run has ended but for this task."""
        state, messages = self._run(context)
        is_success = state.will_succeed()
        with RedisStreamsHook(messages.redis_streams_conn_id) as hook:
            if is_success is None:
                messages.keep(hook)
                return PokeReturnValue(False)
            report = messages.settle(hook, is_success=is_success)
            update_outlets(context, self.outlets, hook.asset_uri(messages.stream), report)
        return PokeReturnValue(True, report)

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | None = None, **_: Any
    ) -> Mapping[str, Any] | None:
        """Return the trigger's event: how many were acked or handed back."""
        if event is not None and self.outlets:
            messages = RunMessages.of_report(self.taken)
            uri = RedisStreamsHook(messages.redis_streams_conn_id).asset_uri(messages.stream)
            update_outlets(context, self.outlets, uri, dict(event))
        return event

    def _run(self, context: Context) -> tuple[RunState, RunMessages]:
        with failing_at_once():
            messages = RunMessages.of_report(self.taken)
            return RunState.of_context(context, AckByRunSensor), messages


def _is_dag_test() -> bool:
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

    return isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), InProcessSupervisorComms)
