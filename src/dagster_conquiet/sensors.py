"""The doorbell: a sensor that looks at a backlog and asks for one run; it never consumes a message."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
from dagster import DagsterInstance, RunRecord

from conquiet.queue import BacklogStats, peek_backlog
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.draining import redis_of
from dagster_conquiet.metadata import backlog_metadata
from dagster_conquiet.runs import last_finished, remaining_pause_s, run_in_progress
from dagster_conquiet.specs import DrainSpec


def build_backlog_sensor(
    spec: DrainSpec,
    job: Any,
    *,
    name: str | None = None,
    min_lag: int = 1,
    pause_after_failure_s: float = 60.0,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Ask for one run of the job whenever messages wait and no run of the job is in progress.

    However many messages come, there is one run at a time; it drains all of them, or up to its
    `max_messages`, and then the next tick looks again. Each change of the lag is recorded as an observation
    of the stream's asset.

    Args:
        min_lag: how many messages must wait; an unknown lag counts as enough.
        pause_after_failure_s: how long after a failed run the next one is asked for.
    """

    @dg.sensor(
        name=name or f"backlog__{spec.name}",
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={spec.resources.redis},
    )
    def backlog_sensor(context: dg.SensorEvaluationContext, **_same: object) -> dg.SensorResult:
        # A sensor that is called directly, as in a test, is also handed its resources by name.
        with redis_of(context, spec.resources).connect() as client:
            backlog = peek_backlog(client, stream=spec.stream, group=spec.group)
        cursor = _cursor(backlog)
        observations = [] if cursor == context.cursor else [_observation(spec, backlog)]
        request = _request(context.instance, spec, job.name, backlog, min_lag, pause_after_failure_s)
        if isinstance(request, str):
            return dg.SensorResult(skip_reason=request, cursor=cursor, asset_events=observations)
        return dg.SensorResult(run_requests=[request], cursor=cursor, asset_events=observations)

    return backlog_sensor


def _request(
    instance: DagsterInstance,
    spec: DrainSpec,
    job_name: str,
    backlog: BacklogStats,
    min_lag: int,
    pause_after_failure_s: float,
) -> dg.RunRequest | str:
    """The run to ask for, or why there is none."""
    lag = backlog.lag
    if lag is not None and lag < min_lag:
        return f"{lag} messages wait in {spec.stream!r} for {spec.group!r}, fewer than {min_lag}"
    if running := run_in_progress(instance, job_name):
        return f"run {running} of {job_name!r} is in progress"
    last = last_finished(instance, job_name)
    if (wait_s := remaining_pause_s(last, pause_after_failure_s)) > 0:
        return f"the last run of {job_name!r} failed; the next one is asked for in {wait_s:.0f} s"
    return dg.RunRequest(
        run_key=_run_key(spec, backlog, last),
        tags={"conquiet/stream": spec.stream, "conquiet/group": spec.group, "conquiet/lag": str(lag)},
    )


def _run_key(spec: DrainSpec, backlog: BacklogStats, last: RunRecord | None) -> str:
    # The same for a tick that is repeated; another one when the group was given more, or when a run ended
    # and left everything as it was.
    after = last.dagster_run.run_id if last else "none"
    return f"{spec.stream}|{spec.group}|{backlog.last_delivered_id}|{after}"


def _cursor(backlog: BacklogStats) -> str:
    return json.dumps([backlog.last_id, backlog.last_delivered_id, backlog.lag, backlog.pending])


def _observation(spec: DrainSpec, backlog: BacklogStats) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset_key=stream_asset_key(spec.stream),
        metadata={"group": spec.group, "last_id": backlog.last_id, **backlog_metadata(backlog)},
    )
