"""One drain inside one step: under its own consumer name, after what its earlier attempts left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagster import DagsterInstance

from conquiet.consume import DrainReport, drain, drain_stale
from conquiet.errors import DrainError
from conquiet.queue import RedisStreamsQueue
from dagster_conquiet.attempts import Context, attempt_of
from dagster_conquiet.config import ClaimStaleConfig, DrainConfig
from dagster_conquiet.interrupts import interrupts_between_messages
from dagster_conquiet.metadata import Metadata, drain_metadata
from dagster_conquiet.resources import DatabaseResource, RedisStreamsResource
from dagster_conquiet.specs import DrainSpec, ResourceKeys, handler_of
from dagster_conquiet.timeline import Timeline
from dagster_conquiet.traces import step_span

#: Where the core cannot know the lag, this many entries are counted.
COUNT_LIMIT = 10_000


def drain_in_step(context: Context, spec: DrainSpec, config: DrainConfig) -> tuple[DrainReport, Metadata]:
    """Drain the stream, first what earlier attempts of this step and of the runs it retries left pending.

    Raises:
        DrainError: `max_failures` messages failed; they are pending.
    """
    attempt = attempt_of(context)
    with step_span(context), _queue(context, spec, attempt.consumer_name) as queue:
        left = attempt.earlier_names(queue.consumer_names())
        if left:
            context.log.info("takes back what %d earlier attempts left: %s", len(left), ", ".join(left))
        limits = _limits(spec, config) | {"idle_ms": config.idle_ms, "take_over_from": left}
        return _run(context, spec, queue, drain, limits)


def claim_stale_in_step(
    context: Context, spec: DrainSpec, config: ClaimStaleConfig
) -> tuple[DrainReport, Metadata]:
    """Handle what nobody has touched for a time, and forget the names of steps that are over."""
    with step_span(context), _queue(context, spec, attempt_of(context).consumer_name) as queue:
        limits = _limits(spec, config) | {"min_idle_ms": config.min_idle_ms}
        result = _run(context, spec, queue, drain_stale, limits)
        forgotten = forget_finished_consumers(queue, context.instance)
        context.log.info("forgot %d consumers of runs that are over", forgotten)
        return result


def forget_finished_consumers(queue: RedisStreamsQueue, instance: DagsterInstance) -> int:
    """Remove consumers of finished runs from the group; one that has something pending stays."""
    removed = 0
    for name in queue.consumer_names():
        run = instance.get_run_by_id(name.partition(".")[0])
        if run is not None and run.is_finished:
            removed += queue.remove_consumer(name)
    return removed


def redis_of(context: Any, keys: ResourceKeys) -> RedisStreamsResource:
    """The resource under its key."""
    found: RedisStreamsResource = getattr(context.resources, keys.redis)
    return found


def database_of(context: Any, keys: ResourceKeys) -> DatabaseResource:
    """The resource under its key."""
    found: DatabaseResource = getattr(context.resources, keys.database)
    return found


def counted(handler: Callable[..., Any], timeline: Timeline) -> Callable[..., Any]:
    """The handler, with each message that it finished counted at its moment."""

    def handle(*arguments: Any) -> Any:
        result = handler(*arguments)
        timeline.count()
        return result

    return handle


def _queue(context: Context, spec: DrainSpec, consumer_name: str) -> Any:
    return redis_of(context, spec.resources).open_queue(
        stream=spec.stream, group=spec.group, consumer_name=consumer_name, claim_idle_ms=spec.claim_idle_ms
    )


def _limits(spec: DrainSpec, config: DrainConfig) -> dict[str, Any]:
    return {
        "max_messages": config.max_messages,
        "max_duration_s": config.max_duration_s,
        "on_error": "continue",
        "max_failures": config.max_failures,
        "max_deliveries": config.max_deliveries,
        "batch_size": config.batch_size,
        "inbox": spec.inbox,
    }


def _run(
    context: Context,
    spec: DrainSpec,
    queue: RedisStreamsQueue,
    run: Callable[..., DrainReport],
    limits: dict[str, Any],
) -> tuple[DrainReport, Metadata]:
    timeline = Timeline()
    handler = counted(handler_of(spec.handler), timeline)
    engine = database_of(context, spec.resources).get_engine()
    with interrupts_between_messages() as is_told_to_stop:
        try:
            report = run(queue, handler, engine, should_stop=is_told_to_stop, **limits)
        except DrainError as error:
            if error.report.stopped_by == "max_failures":
                raise
            report = error.report
            context.log.warning("%s", error)
        queue.remove_consumer(queue.config.consumer_name)
    after = queue.backlog_stats(count_limit=COUNT_LIMIT)
    return report, drain_metadata(report, after, timeline)
