"""Which attempt of which step this is, and who its earlier attempts were."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import dagster as dg

from conquiet.queue import unique_consumer_name
from dagster_conquiet.runs import runs_retried_by

Context = dg.OpExecutionContext | dg.AssetExecutionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at one step of one run; its name in the consumer group is unique to it."""

    run_id: str
    step: str
    retry_number: int
    #: The runs that this one is a retry of, the nearest first; all of them ended without success.
    earlier_runs: tuple[str, ...] = ()

    @property
    def consumer_name(self) -> str:
        """The run, the step, and the number of the retry, from 0."""
        return f"{self.run_id}.{self.step}.{self.retry_number}"

    @property
    def work_id(self) -> str:
        """The same for every attempt at this work, in this run and in those that it retries."""
        first = self.earlier_runs[-1] if self.earlier_runs else self.run_id
        return f"{first}.{self.step}"

    def earlier_names(self, names: Iterable[str]) -> list[str]:
        """Which of these consumers are earlier attempts at the same work: dead, since this one runs."""
        return sorted(name for name in names if self._is_earlier(name))

    def _is_earlier(self, name: str) -> bool:
        for run_id in self.earlier_runs:
            if _retry_of(name, run_id, self.step) is not None:
                return True
        retry = _retry_of(name, self.run_id, self.step)
        return retry is not None and retry < self.retry_number


def attempt_of(context: Context) -> Attempt:
    """The attempt of a running step; one of its own kind where a function was called without a run."""
    of_op = context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context
    try:
        run, handle = of_op.run, of_op.op_handle
    except dg.DagsterError:
        # Called directly, as in a unit test: there is no run, and no other attempt.
        return Attempt(run_id=unique_consumer_name("direct"), step="call", retry_number=0)
    mapping_key = of_op.get_mapping_key()
    return Attempt(
        run_id=run.run_id,
        step=f"{handle}[{mapping_key}]" if mapping_key else str(handle),
        retry_number=of_op.retry_number,
        earlier_runs=tuple(runs_retried_by(run, of_op.instance)),
    )


def _retry_of(name: str, run_id: str, step: str) -> int | None:
    prefix = f"{run_id}.{step}."
    number = name.removeprefix(prefix)
    return int(number) if name.startswith(prefix) and number.isdecimal() else None
