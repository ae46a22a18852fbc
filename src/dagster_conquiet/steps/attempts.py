"""Which attempt of which step this is, and what its earlier attempts were named."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import dagster as dg

from conquiet.queue import unique_consumer_name
from conquiet.tracing import working
from dagster_conquiet.steps.runs import runs_retried_by

Context = dg.OpExecutionContext | dg.AssetExecutionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at one step of one run; its name in the consumer group is unique to it."""

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
        in_this_run = f"{self.run_id}.{self.step}"
        in_earlier_runs = {f"{run_id}.{self.step}" for run_id in self.earlier_runs}
        earlier = []
        for name in names:
            work, _, number = name.rpartition(".")
            retry = int(number) if number.isdecimal() else None
            if retry is not None and (
                work in in_earlier_runs or (work == in_this_run and retry < self.retry_number)
            ):
                earlier.append(name)
        return sorted(earlier)

    def span(self) -> AbstractContextManager[None]:
        """What the step sends and handles inside belongs to its span; nothing while tracing is off."""
        attributes = {
            "dagster.run_id": self.run_id,
            "dagster.step": self.step,
            "dagster.retry_number": self.retry_number,
        }
        return working(f"step {self.step}", attributes)


def attempt_of(context: Context) -> Attempt:
    """The attempt of a running step; a unique one where a function was called without a run."""
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
