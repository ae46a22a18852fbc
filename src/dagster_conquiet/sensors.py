"""Sensors that read a backlog and request runs; they never consume a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from conquiet.queue import Client
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.described import names_of, tags_of
from dagster_conquiet.partitions import dynamic_topic_partitions
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec
from dagster_conquiet.steps.backlog import Waiting, waiting_in_partitions, waiting_in_stream
from dagster_conquiet.steps.metadata import Metadata, page_link, source_metadata
from dagster_conquiet.steps.runs import (
    concerns_partition,
    finished_runs,
    is_cancelled_since,
    remaining_pause_s,
    runs_in_progress,
)
from dagster_conquiet.steps.workers import Working, who_works


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The stream, or one partition of the topic."""

    waiting: Waiting
    name: str
    #: Of the request; what the tick finds of earlier runs is added to it.
    run_key: str
    tags: dict[str, str]
    partition_key: str | None = None

    @property
    def state(self) -> list[Any]:
        """It is observed whenever this changes; of one that never had a message it does not."""
        backlog = self.waiting.backlog
        if backlog.last_id == "0-0":
            # Automation would take the first observation for news.
            return []
        return [backlog.last_id, backlog.last_delivered_id, backlog.lag, backlog.pending]

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
class _Rules:
    """When a run is requested."""

    min_lag: int = 1
    max_runs: int = 1
    pause_after_failure_s: float = 60.0
    stalled_after_s: float = 120.0

    def reason_to_wait(self, part: _Part, working: Working, last: dg.RunRecord | None) -> str | None:
        """Why no run is requested although messages wait."""
        if len(working.reasons) >= self.max_runs:
            return "; ".join(working.reasons)
        if is_cancelled_since(last, part.waiting.backlog.last_id):
            return (
                f"run {_id_of(last)} was cancelled, and no message has come to {part.name} since: the next "
                "one is requested when one comes, or after a run that you start"
            )
        if (wait_s := remaining_pause_s(last, self.pause_after_failure_s)) > 0:
            return f"run {_id_of(last)} failed; the next one for {part.name} is requested in {wait_s:.0f} s"
        return None

    def reason_to_rest(self, spec: AnySpec, parts: Sequence[_Part], *, has_job: bool) -> str:
        """Why no run is requested if too few messages wait, or if there is no job."""
        count = sum(part.waiting.count or 0 for part in parts)
        why = f"fewer than {self.min_lag}" if has_job else "and this sensor has no job"
        reason = f"{count} messages wait in {spec.source!r} for {spec.group!r}, {why}"
        if in_flight := sum(part.waiting.in_flight for part in parts):
            names = sorted({name for part in parts for name in part.waiting.live})
            reason += f"; {in_flight} are in flight at {', '.join(names)}"
        if failed := sum(part.waiting.failed for part in parts):
            reason += f"; {failed} failed and are pending until they are tried again"
        if trimmed := sum(part.waiting.trimmed for part in parts):
            reason += f"; {trimmed} that the group was not given were trimmed from the stream"
        return reason


def build_backlog_sensor(
    spec: DrainSpec,
    job: Any = None,
    *,
    min_lag: int = 1,
    max_runs: int = 1,
    pause_after_failure_s: float = 60.0,
    stalled_after_s: float = 120.0,
    **options: Any,
) -> dg.SensorDefinition:
    """Request one run of the job whenever messages wait and nothing drains them.

    However many messages come, one run drains all of them, or as many as its limits allow, and the next tick
    checks again. Each change of the lag is recorded as an observation of the stream's asset. `options` are
    those of `@sensor`, such as `name`, `minimum_interval_seconds` or `default_status`.

    Args:
        job: without one it observes the stream, and requests nothing: for declarative automation.
        min_lag: how many messages must wait; an unknown lag counts as enough.
        max_runs: how many runs and other consumers may drain the stream at once. More than one do not keep
            the order of its messages.
        pause_after_failure_s: how long after a failed run the next one is requested.
        stalled_after_s: a run that has no live consumer in the group, and has written no event for this
            time, does not count as one in progress: it was killed, or does something else. One that is being
            launched has five minutes.

    Examples:
        >>> sensor = build_backlog_sensor(orders, build_drain_job(orders))
    """
    rules = _Rules(
        min_lag=min_lag,
        max_runs=max_runs,
        pause_after_failure_s=pause_after_failure_s,
        stalled_after_s=stalled_after_s,
    )

    def read(client: Client) -> list[_Part]:
        waiting = waiting_in_stream(client, spec)
        backlog = waiting.backlog
        part = _Part(
            waiting=waiting,
            name=repr(spec.stream),
            # The same for a tick that is repeated; another one when the group was given more.
            run_key=f"{spec.stream}|{spec.group}|{backlog.last_delivered_id}",
            tags={"conquiet/stream": spec.stream, "conquiet/lag": str(backlog.lag)},
        )
        return [part]

    return _build_sensor(spec, job, read, rules, options)


def build_topic_backlog_sensor(
    spec: TopicDrainSpec,
    job: Any = None,
    *,
    pause_after_failure_s: float = 60.0,
    stalled_after_s: float = 120.0,
    **options: Any,
) -> dg.SensorDefinition:
    """Request a run of each partition that has messages and no owner; at most one per partition.

    A message that failed counts from when its next attempt is due: only a run makes that attempt. Without a
    job the sensor observes the partitions, and adds those that the topic has got.

    Examples:
        >>> shipped = build_topic_drain_asset(shipments, key="shipped")
        >>> sensor = build_topic_backlog_sensor(shipments, dg.define_asset_job("ship", [shipped]))
    """
    rules = _Rules(pause_after_failure_s=pause_after_failure_s, stalled_after_s=stalled_after_s)

    def read(client: Client) -> list[_Part]:
        return [
            _Part(
                waiting=waiting,
                name=f"partition {number} of {spec.topic!r}",
                run_key=f"{spec.topic}|{spec.group}|{number}",
                tags={
                    "conquiet/topic": spec.topic,
                    "conquiet/lag": str(waiting.backlog.lag),
                    "conquiet/pending": str(waiting.backlog.pending),
                },
                partition_key=str(number),
            )
            for number, waiting in waiting_in_partitions(client, spec).items()
            if spec.partitions is None or number < spec.partitions
        ]

    return _build_sensor(spec, job, read, rules, options)


def _build_sensor(
    spec: AnySpec, job: Any, read: Callable[[Client], list[_Part]], rules: _Rules, options: dict[str, Any]
) -> dg.SensorDefinition:
    def backlog_sensor(context: dg.SensorEvaluationContext, **_same: object) -> dg.SensorResult:
        # A sensor that is called directly, as in a test, is also given its resources by name.
        redis_streams = spec.resources.redis_of(context)
        with redis_streams.connect() as client:
            parts = read(client)
        requests, reasons = _requests(context, spec, job.name, parts, rules) if job else ([], [])
        before, states = _states_in(context.cursor), {part.name: part.state for part in parts}
        link = page_link(spec.source)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None
            if requests
            else "; ".join(reasons) or rules.reason_to_rest(spec, parts, has_job=bool(job)),
            cursor=json.dumps(states),
            dynamic_partitions_requests=_new_partitions(context, spec, parts),
            asset_events=[
                _observation(spec, part, link)
                for part in parts
                if part.state and part.state != before.get(part.name)
            ],
        )

    does = f"Requests runs of {job.name!r} while messages wait in" if job else "Observes"
    defaults = {
        "name": f"backlog__{spec.name}",
        "description": f"{does} {spec.source!r} for {spec.group!r}.",
        "tags": tags_of(spec),
        "metadata": names_of(spec),
    }
    decorate = dg.sensor(job=job, required_resource_keys={spec.resources.redis}, **(defaults | options))
    return decorate(backlog_sensor)


def _requests(
    context: dg.SensorEvaluationContext,
    spec: AnySpec,
    job_name: str,
    parts: Sequence[_Part],
    rules: _Rules,
) -> tuple[list[dg.RunRequest], list[str]]:
    """A request for each part that waits and that nothing drains; for the others that wait, why not."""
    location = _location_of(context)
    in_progress = runs_in_progress(context.instance, job_name, location)
    finished = finished_runs(context.instance, job_name, location)
    requests, reasons = [], []
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
        if reason := rules.reason_to_wait(part, working, last):
            reasons.append(reason)
            continue
        for stalled in working.stalled:
            context.log.warning(
                "run %s of %r is in progress by its state, but nothing of it drains %s: "
                "terminate it, or let run_monitoring do it",
                *(stalled, job_name, part.name),
            )
        requests.append(part.request(spec.group, working, last))
    return requests, reasons


def _states_in(cursor: str | None) -> dict[str, Any]:
    """The state of each part as it was observed last; none in a cursor of an earlier version."""
    try:
        states = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return states if isinstance(states, dict) else {}


def _observation(spec: AnySpec, part: _Part, link: Metadata) -> dg.AssetObservation:
    # The data version of the stream's own asset: automation fires when it changes, and on nothing else.
    backlog = part.waiting.backlog
    return dg.AssetObservation(
        stream_asset_key(spec.source),
        partition=part.partition_key,
        metadata=source_metadata(backlog, spec.group) | link,
        tags={"dagster/data_version": backlog.last_id},
    )


def _new_partitions(
    context: dg.SensorEvaluationContext, spec: AnySpec, parts: Sequence[_Part]
) -> list[dg.AddDynamicPartitionsRequest]:
    if not isinstance(spec, TopicDrainSpec) or spec.partitions is not None:
        return []
    definition = dynamic_topic_partitions(spec.topic)
    known = set(context.instance.get_dynamic_partitions(definition.name or ""))
    new = [part.partition_key for part in parts if part.partition_key and part.partition_key not in known]
    return [definition.build_add_request(new)] if new else []


def _id_of(record: dg.RunRecord | None) -> str:
    return "none" if record is None else record.dagster_run.run_id


def _location_of(context: dg.SensorEvaluationContext) -> str | None:
    """As Dagster labels the runs of this code location; `None` where the context is made by hand."""
    origin = context.code_location_origin
    if origin is None or context.repository_name is None:
        return None
    return f"{context.repository_name}@{origin.location_name}"
