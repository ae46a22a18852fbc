"""Which runs a tick of a backlog sensor requests, and in words why no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_conquiet.specs import AnySpec, DrainSpec
from dagster_conquiet.steps.backlog import Waiting
from dagster_conquiet.steps.cancelled import Memory
from dagster_conquiet.steps.runs import (
    concerns_partition,
    finished_runs,
    remaining_pause_s,
    runs_in_progress,
)
from dagster_conquiet.steps.workers import Working, who_works


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The stream, or one partition of the topic."""

    waiting: Waiting
    name: str
    #: Of the request; what the tick finds of earlier runs is added to it.
    run_key: str
    tags: dict[str, str]
    partition_key: str | None = None

    @property
    def state(self) -> tuple[Any, ...]:
        """It is observed whenever this changes; of one that never had a message it does not."""
        backlog = self.waiting.backlog
        if backlog.last_id == "0-0":
            # Automation would take the first observation for news.
            return ()
        return (backlog.last_id, backlog.last_delivered_id, backlog.lag, backlog.pending)

    def request(self, group: str, working: Working, last: dg.RunRecord | None) -> dg.RunRequest:
        """The run that drains it, beside the ones that work and after the last one that has finished."""
        # Another key after a run that ended, or was killed, and left everything as it was; and beside others.
        so_far = [_id_of(last), *working.stalled, *working.names]
        return dg.RunRequest(
            run_key="|".join([self.run_key, *so_far]),
            tags={"conquiet/group": group, **self.tags},
            partition_key=self.partition_key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a run is requested."""

    min_lag: int = 1
    max_runs: int = 1
    pause_after_failure_s: float = 60.0
    stalled_after_s: float = 120.0

    def reason_to_wait(
        self, part: Part, working: Working, last: dg.RunRecord | None, memory: Memory
    ) -> str | None:
        """Why no run is requested although messages wait."""
        if len(working.reasons) >= self.max_runs:
            return "; ".join(working.reasons)
        if memory.waits_for_a_message:
            return (
                f"run {_id_of(last)} was cancelled, and no message has come to {part.name} since: the next "
                "one is requested when one comes, or after a run that you start"
            )
        if (wait_s := remaining_pause_s(last, self.pause_after_failure_s)) > 0:
            return f"run {_id_of(last)} failed; the next one for {part.name} is requested in {wait_s:.0f} s"
        return None

    def reason_to_rest(self, spec: AnySpec, parts: Sequence[Part], *, has_job: bool) -> str:
        """Why no run is requested if too few messages wait, or if there is no job."""
        why = f"fewer than {self.min_lag}" if has_job else "and this sensor has no job"
        reason = f"{_number_of(parts)} messages wait in {spec.source!r} for {spec.group!r}, {why}"
        if in_flight := sum(part.waiting.in_flight for part in parts):
            names = sorted({name for part in parts for name in part.waiting.live})
            reason += f"; {in_flight} are in flight at {', '.join(names)}"
        if left := sum(part.waiting.left for part in parts):
            until = "a recovery" if isinstance(spec, DrainSpec) else "their next attempt"
            reason += f"; {left} are pending at no live consumer and wait for {until}"
        if trimmed := sum(part.waiting.trimmed for part in parts):
            reason += f"; {trimmed} that the group was not given were trimmed from the stream"
        return reason


def undrained_partitions(spec: AnySpec, parts: Sequence[Part], undefined: Sequence[Part]) -> str | None:
    """What a topic has beyond the partitions of its spec, in words."""
    if not undefined:
        return None
    return (
        f"topic {spec.source!r} has {len(parts) + len(undefined)} partitions, the definitions {len(parts)}: "
        f"nothing drains the others, in which {_number_of(undefined)} messages wait; without `partitions`, "
        "the spec follows the topic"
    )


def requests_of_tick(
    context: dg.SensorEvaluationContext,
    spec: AnySpec,
    job_name: str,
    parts: Sequence[Part],
    rules: Rules,
    memories: Mapping[str, Memory],
) -> tuple[list[dg.RunRequest], list[str], dict[str, Memory]]:
    """A request for each part that waits and that nothing drains; for the others that wait, why not.

    Args:
        memories: of the tick before this one; those of this tick are returned.
    """
    location = _location_of(context)
    in_progress = runs_in_progress(context.instance, job_name, location)
    finished = finished_runs(context.instance, job_name, location)
    requests, reasons, remembered = [], [], dict(memories)
    for part in parts:
        if part.waiting.count is not None and part.waiting.count < rules.min_lag:
            continue
        working = who_works(
            context.instance,
            [run for run in in_progress if concerns_partition(run.dagster_run, part.partition_key)],
            part.waiting.live,
            what=part.name,
            pool=spec.pool,
            stalled_after_s=rules.stalled_after_s,
        )
        last = finished.last_of(part.partition_key)
        memory = memories.get(part.name, Memory()).with_last_run(last, part.waiting)
        remembered[part.name] = memory
        if reason := rules.reason_to_wait(part, working, last, memory):
            reasons.append(reason)
            continue
        for stalled in working.stalled:
            context.log.warning(
                "run %s of %r is in progress by its state, but nothing of it drains %s: "
                "terminate it, or let run_monitoring do it",
                *(stalled, job_name, part.name),
            )
        requests.append(part.request(spec.group, working, last))
    return requests, reasons, remembered


def _number_of(parts: Sequence[Part]) -> str:
    counts = [part.waiting.count for part in parts]
    known = sum(count or 0 for count in counts)
    if None not in counts:
        return str(known)
    return f"more than {known}" if known else "an unknown number of"


def _id_of(record: dg.RunRecord | None) -> str:
    return "none" if record is None else record.dagster_run.run_id


def _location_of(context: dg.SensorEvaluationContext) -> str | None:
    """As Dagster labels the runs of this code location; `None` where the context is made by hand."""
    origin = context.code_location_origin
    if origin is None or context.repository_name is None:
        return None
    return f"{context.repository_name}@{origin.location_name}"
