"""Sensors that read a backlog and request runs; they never consume a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from conquiet.queue import Client
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.described import tags_of
from dagster_conquiet.partitions import dynamic_topic_partitions
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec
from dagster_conquiet.steps.backlog import waiting_in_partitions, waiting_in_stream
from dagster_conquiet.steps.cancelled import Memory
from dagster_conquiet.steps.metadata import Metadata, definition_metadata, page_link, source_metadata
from dagster_conquiet.steps.requests import Part, Rules, requests_of_tick, undrained_partitions


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
        job: without one it observes the stream, and requests nothing: for declarative automation, which
            needs `build_stream_asset(spec.stream)` in the definitions too, and else fires on nothing.
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
    rules = Rules(
        min_lag=min_lag,
        max_runs=max_runs,
        pause_after_failure_s=pause_after_failure_s,
        stalled_after_s=stalled_after_s,
    )

    def read(client: Client) -> list[Part]:
        waiting = waiting_in_stream(client, spec)
        backlog = waiting.backlog
        part = Part(
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
    job the sensor observes the partitions, and adds those that the topic has got: for declarative automation,
    which needs `build_topic_asset(spec)` in the definitions too, and else fires on nothing.

    Examples:
        >>> shipped = build_topic_drain_asset(shipments, key="shipped")
        >>> sensor = build_topic_backlog_sensor(shipments, dg.define_asset_job("ship", [shipped]))
    """
    rules = Rules(pause_after_failure_s=pause_after_failure_s, stalled_after_s=stalled_after_s)

    def read(client: Client) -> list[Part]:
        return [
            Part(
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
        ]

    return _build_sensor(spec, job, read, rules, options)


def _build_sensor(
    spec: AnySpec, job: Any, read: Callable[[Client], list[Part]], rules: Rules, options: dict[str, Any]
) -> dg.SensorDefinition:
    def backlog_sensor(context: dg.SensorEvaluationContext, **_same: object) -> dg.SensorResult:
        # A sensor that is called directly, as in a test, is also given its resources by name.
        redis_streams = spec.resources.redis_of(context)
        with redis_streams.connect() as client:
            parts = read(client)
        # What the definitions do not have cannot be requested.
        defined = getattr(spec, "partitions", None)
        parts, undefined = parts[:defined], parts[len(parts) if defined is None else defined :]
        before = _memories_in(context.cursor)
        requests, reasons, memories = (
            requests_of_tick(context, spec, job.name, parts, rules, before) if job else ([], [], before)
        )
        reasons = reasons or [rules.reason_to_rest(spec, parts, has_job=bool(job))]
        missing = [undrained_partitions(spec, parts, undefined)]
        if not job:
            missing.append(_missing_source(context, spec))
        for sentence in filter(None, missing):
            reasons.append(sentence)
            context.log.warning(sentence)
        after = {
            part.name: memories.get(part.name, Memory()).after_tick(part.state, part.waiting)
            for part in parts
        }
        link = page_link(spec.source)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else "; ".join(reasons),
            cursor=json.dumps({name: memory.to_json() for name, memory in after.items()}),
            dynamic_partitions_requests=_new_partitions(context, spec, parts),
            asset_events=[
                _observation(spec, part, link)
                for part in parts
                if part.state and part.state != before.get(part.name, Memory()).state
            ],
        )

    does = f"Requests runs of {job.name!r} while messages wait in" if job else "Observes"
    defaults = {
        "name": f"backlog__{spec.name}",
        "description": f"{does} {spec.source!r} for {spec.group!r}.",
        "tags": tags_of(spec),
        "metadata": definition_metadata(spec),
    }
    decorate = dg.sensor(job=job, required_resource_keys={spec.resources.redis}, **(defaults | options))
    return decorate(backlog_sensor)


def _missing_source(context: dg.SensorEvaluationContext, spec: AnySpec) -> str | None:
    """What automation needs beside this sensor, if the definitions do not have it."""
    repository, key = context.repository_def, stream_asset_key(spec.source)
    graph = None if repository is None else repository.asset_graph
    if graph is None or (graph.has(key) and graph.get(key).is_observable):
        return None
    build = "build_stream_asset" if isinstance(spec, DrainSpec) else "build_topic_asset"
    return (
        f"automation never fires: asset {key.to_user_string()!r} is not an observable asset of the "
        f"definitions; add {build}(…) to their assets"
    )


def _memories_in(cursor: str | None) -> dict[str, Memory]:
    """Of each part by its name; none in a cursor that is not one of this sensor."""
    try:
        stored = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return {name: Memory.of(known) for name, known in stored.items()} if isinstance(stored, dict) else {}


def _observation(spec: AnySpec, part: Part, link: Metadata) -> dg.AssetObservation:
    # The data version of the stream's own asset: automation fires when it changes, and on nothing else.
    backlog = part.waiting.backlog
    return dg.AssetObservation(
        stream_asset_key(spec.source),
        partition=part.partition_key,
        metadata=source_metadata(backlog, spec.group) | link,
        tags={"dagster/data_version": backlog.last_id},
    )


def _new_partitions(
    context: dg.SensorEvaluationContext, spec: AnySpec, parts: Sequence[Part]
) -> list[dg.AddDynamicPartitionsRequest]:
    if not isinstance(spec, TopicDrainSpec) or spec.partitions is not None:
        return []
    definition = dynamic_topic_partitions(spec.topic)
    known = set(context.instance.get_dynamic_partitions(definition.name or ""))
    new = [part.partition_key for part in parts if part.partition_key and part.partition_key not in known]
    return [definition.build_add_request(new)] if new else []
