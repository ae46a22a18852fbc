"""The doorbell of a topic: one run for each partition that waits; it never consumes a message."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from conquiet.queue import BacklogStats
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.backlogs import partition_backlogs
from dagster_conquiet.draining import redis_of
from dagster_conquiet.metadata import lag_value
from dagster_conquiet.runs import last_finished, remaining_pause_s, run_in_progress
from dagster_conquiet.specs import TopicDrainSpec


def build_topic_backlog_sensor(
    spec: TopicDrainSpec,
    job: Any,
    *,
    name: str | None = None,
    pause_after_failure_s: float = 60.0,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Ask for one run of each partition that has messages and no run in progress; at most one per partition.

    Messages that failed and wait for their next attempt count too: a run must come for them.
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
            backlogs = partition_backlogs(client, spec)
        cursor = json.dumps({number: [part.lag, part.pending] for number, part in backlogs.items()})
        observations = [] if cursor == context.cursor else [_observation(spec, backlogs)]
        found = [
            _request(context.instance, spec, job.name, number, part, pause_after_failure_s)
            for number, part in backlogs.items()
            if number < spec.partitions and (part.lag is None or part.lag + part.pending > 0)
        ]
        requests = [request for request in found if request is not None]
        if not requests:
            return dg.SensorResult(
                skip_reason=f"no partition of {spec.topic!r} waits for a run",
                cursor=cursor,
                asset_events=observations,
            )
        return dg.SensorResult(run_requests=requests, cursor=cursor, asset_events=observations)

    return backlog_sensor


def _request(
    instance: DagsterInstance,
    spec: TopicDrainSpec,
    job_name: str,
    partition: int,
    backlog: BacklogStats,
    pause_after_failure_s: float,
) -> dg.RunRequest | None:
    of_partition = {"dagster/partition": str(partition)}
    last = last_finished(instance, job_name, of_partition)
    if (
        run_in_progress(instance, job_name, of_partition)
        or remaining_pause_s(last, pause_after_failure_s) > 0
    ):
        return None
    after = last.dagster_run.run_id if last else "none"
    return dg.RunRequest(
        run_key=f"{spec.topic}|{spec.group}|{partition}|{after}",
        partition_key=str(partition),
        tags={
            "conquiet/topic": spec.topic,
            "conquiet/group": spec.group,
            "conquiet/lag": str(backlog.lag),
            "conquiet/pending": str(backlog.pending),
        },
    )


def _observation(spec: TopicDrainSpec, backlogs: dict[int, BacklogStats]) -> dg.AssetObservation:
    lags = {f"lag_of_partition_{number}": lag_value(part.lag) for number, part in backlogs.items()}
    pending = dg.MetadataValue.int(sum(part.pending for part in backlogs.values()))
    return dg.AssetObservation(
        asset_key=stream_asset_key(spec.topic),
        metadata={"group": spec.group, "pending": pending, **lags},
    )
