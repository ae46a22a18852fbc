"""Sensors that read a backlog and request runs; they never consume a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dagster as dg

from conquiet.queue import Client, peek_backlog
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec
from dagster_conquiet.steps.backlog import partition_backlogs
from dagster_conquiet.steps.metadata import backlog_metadata, lag_value
from dagster_conquiet.steps.runs import last_finished, remaining_pause_s, run_in_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backlog:
    """What one tick found."""

    #: An observation is recorded whenever this changes.
    cursor: str
    metadata: dict[str, Any]
    #: The runs to request, without what they have in common.
    wanted: list[dg.RunRequest]
    #: Why no run is requested if none is wanted.
    skip_reason: str


def build_backlog_sensor(
    spec: DrainSpec, job: Any, *, min_lag: int = 1, pause_after_failure_s: float = 60.0, **options: Any
) -> dg.SensorDefinition:
    """Request one run of the job whenever messages wait and no run of the job is in progress.

    However many messages come, there is one run at a time; it drains all of them, or up to its
    `max_messages`, and the next tick checks again. Each change of the lag is recorded as an observation of
    the stream's asset. `options` are those of `@sensor`, such as `name`, `minimum_interval_seconds` or
    `default_status`.

    Args:
        min_lag: how many messages must wait; an unknown lag counts as enough.
        pause_after_failure_s: how long after a failed run the next one is requested.
    """

    def read(client: Client) -> _Backlog:
        backlog = peek_backlog(client, stream=spec.stream, group=spec.group)
        # Replayed dead letters are pending, and unlike other pending messages no step has them.
        replayed = sum(consumer.pending for consumer in backlog.consumers if consumer.name == "replay")
        waiting = None if backlog.lag is None else backlog.lag + replayed
        # The same for a tick that is repeated; another one when the group was given more.
        run_key = f"{spec.stream}|{spec.group}|{backlog.last_delivered_id}"
        tags = {"conquiet/stream": spec.stream, "conquiet/lag": str(backlog.lag)}
        return _Backlog(
            cursor=json.dumps([backlog.last_id, backlog.last_delivered_id, backlog.lag, backlog.pending]),
            metadata={"last_id": backlog.last_id, **backlog_metadata(backlog)},
            wanted=[dg.RunRequest(run_key=run_key, tags=tags)]
            if waiting is None or waiting >= min_lag
            else [],
            skip_reason=f"{waiting} messages wait in {spec.stream!r} for {spec.group!r}, "
            f"fewer than {min_lag}",
        )

    return _build_sensor(spec, job, read, pause_after_failure_s, options)


def build_topic_backlog_sensor(
    spec: TopicDrainSpec, job: Any, *, pause_after_failure_s: float = 60.0, **options: Any
) -> dg.SensorDefinition:
    """Request a run of each partition that has messages and no run in progress; at most one per partition.

    Messages that failed and wait for their next attempt count too: only a run makes that attempt.
    """

    def read(client: Client) -> _Backlog:
        backlogs = partition_backlogs(client, spec)
        lags = {f"lag_of_partition_{number}": lag_value(part.lag) for number, part in backlogs.items()}
        return _Backlog(
            cursor=json.dumps({number: [part.lag, part.pending] for number, part in backlogs.items()}),
            metadata={"pending": sum(part.pending for part in backlogs.values()), **lags},
            wanted=[
                dg.RunRequest(
                    run_key=f"{spec.topic}|{spec.group}|{number}",
                    partition_key=str(number),
                    tags={
                        "conquiet/topic": spec.topic,
                        "conquiet/lag": str(part.lag),
                        "conquiet/pending": str(part.pending),
                    },
                )
                for number, part in backlogs.items()
                if number < spec.partitions and (part.lag is None or part.lag + part.pending > 0)
            ],
            skip_reason=f"no messages wait in {spec.topic!r} for {spec.group!r}",
        )

    return _build_sensor(spec, job, read, pause_after_failure_s, options)


def _build_sensor(
    spec: AnySpec, job: Any, read: Callable[[Client], _Backlog], pause_s: float, options: dict[str, Any]
) -> dg.SensorDefinition:
    def backlog_sensor(context: dg.SensorEvaluationContext, **_same: object) -> dg.SensorResult:
        # A sensor that is called directly, as in a test, is also given its resources by name.
        with spec.resources.redis_of(context).connect() as client:
            backlog = read(client)
        requests, reasons = [], []
        for wanted in backlog.wanted:
            tags = None if wanted.partition_key is None else {"dagster/partition": wanted.partition_key}
            if running := run_in_progress(context.instance, job.name, tags):
                reasons.append(f"run {running} of {job.name!r} is in progress")
                continue
            last = last_finished(context.instance, job.name, tags)
            if (wait_s := remaining_pause_s(last, pause_s)) > 0:
                reasons.append(
                    f"the last run of {job.name!r} failed; the next one is requested in {wait_s:.0f} s"
                )
                continue
            # Another key after a run that ended and left everything as it was.
            after = last.dagster_run.run_id if last else "none"
            tags = {"conquiet/group": spec.group, **wanted.tags}
            requests.append(wanted.with_replaced_attrs(run_key=f"{wanted.run_key}|{after}", tags=tags))
        observation = dg.AssetObservation(
            asset_key=stream_asset_key(spec.source), metadata={"group": spec.group, **backlog.metadata}
        )
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else "; ".join(reasons) or backlog.skip_reason,
            cursor=backlog.cursor,
            asset_events=[] if backlog.cursor == context.cursor else [observation],
        )

    decorate = dg.sensor(
        job=job,
        required_resource_keys={spec.resources.redis},
        **({"name": f"backlog__{spec.name}"} | options),
    )
    return decorate(backlog_sensor)
