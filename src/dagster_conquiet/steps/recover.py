"""The recovery: handles what dead steps left pending, and removes their names from the group."""

from __future__ import annotations

from functools import partial

from conquiet.consume import DrainReport, drain_stale
from conquiet.queue import RedisStreamsQueue
from dagster_conquiet.config import ClaimStaleConfig
from dagster_conquiet.specs import DrainSpec
from dagster_conquiet.steps.attempts import Attempt, Context
from dagster_conquiet.steps.drain import opened_step, queue_of, run_drain
from dagster_conquiet.steps.metadata import Metadata


def recover_in_step(
    context: Context, spec: DrainSpec, config: ClaimStaleConfig
) -> tuple[DrainReport, Metadata]:
    """Handle messages that are idle for `min_idle_ms`, and remove the consumers of finished runs.

    A consumer that has something pending stays.
    """
    with opened_step(context, spec, config) as (client, attempt, limits):
        queue = queue_of(client, spec, attempt)
        min_idle_ms, payload = config.min_idle_ms, spec.payload
        drain_it = partial(drain_stale, queue, limits=limits, min_idle_ms=min_idle_ms, payload=payload)
        try:
            return run_drain(context, client, spec, config, drain_it)
        finally:
            # Also if messages failed: then it fails every time.
            _remove_consumers(context, queue, attempt)


def _remove_consumers(context: Context, queue: RedisStreamsQueue, attempt: Attempt) -> None:
    removed = 0
    for name in queue.consumer_names():
        run = context.instance.get_run_by_id(name.partition(".")[0])
        if name == attempt.consumer_name or (run is not None and run.is_finished):
            removed += queue.remove_consumer(name)
    context.log.info("removed %d consumers of finished steps", removed)
