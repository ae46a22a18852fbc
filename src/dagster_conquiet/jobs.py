"""Jobs of one step: drain, recover what dead steps left, replay dead letters; and the recovery's schedule."""

# No `from __future__ import annotations` here: Dagster reads the config's type, which is made on the spot.

from typing import Any

import dagster as dg

from dagster_conquiet.config import ClaimStaleConfig, ReplayConfig, with_defaults
from dagster_conquiet.draining import claim_stale_in_step, redis_of
from dagster_conquiet.ops import build_drain_op, report_without_errors
from dagster_conquiet.replays import replay_quarantined, replay_topic
from dagster_conquiet.runs import run_in_progress
from dagster_conquiet.specs import DrainSpec, TopicDrainSpec


def build_drain_job(
    spec: DrainSpec, *, name: str | None = None, retry_policy: dg.RetryPolicy | None = None, **options: Any
) -> dg.JobDefinition:
    """A job that drains the stream; `options` are those of `@job`."""
    drain_stream = build_drain_op(spec, retry_policy=retry_policy)

    @dg.job(name=name or f"drain_{spec.name}", **options)
    def drain_job() -> None:
        drain_stream()

    return drain_job


def build_claim_stale_job(
    spec: DrainSpec, *, name: str | None = None, config: ClaimStaleConfig | None = None, **options: Any
) -> dg.JobDefinition:
    """A job that handles what dead steps left pending and forgets their names; `options` are those of `@job`.

    It is the only thing that ever takes a message from a step that was killed and not retried: schedule it.
    """
    config_type = with_defaults(config or ClaimStaleConfig())

    @dg.op(
        name=f"claim_stale__{spec.name}",
        required_resource_keys={spec.resources.redis, spec.resources.database},
        out=dg.Out(dict[str, Any]),
        pool=f"{spec.pool}_stale",
    )
    def claim_stale(
        context: dg.OpExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # with the caller's own defaults
    ) -> dg.Output[dict[str, Any]]:
        report, metadata = claim_stale_in_step(context, spec, config)
        return dg.Output(report_without_errors(report), metadata=metadata)

    @dg.job(name=name or f"claim_stale_{spec.name}", **options)
    def claim_stale_job() -> None:
        claim_stale()

    return claim_stale_job


def build_claim_stale_schedule(
    job: dg.JobDefinition,
    *,
    cron_schedule: str = "*/5 * * * *",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Run the recovery every five minutes, and never twice at once."""

    @dg.schedule(
        name=f"{job.name}_schedule", job=job, cron_schedule=cron_schedule, default_status=default_status
    )
    def claim_stale_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        running = run_in_progress(context.instance, job.name)
        if running is not None:
            return dg.SkipReason(f"run {running} of {job.name!r} is in progress")
        return dg.RunRequest()

    return claim_stale_schedule


def build_replay_dead_letters_job(
    spec: DrainSpec | TopicDrainSpec, *, name: str | None = None, **options: Any
) -> dg.JobDefinition:
    """A job that moves dead letters back to where they came from; its config is a `ReplayConfig`.

    Letters of a topic come back for the group that gave them up. Those of a plain stream come back as new
    messages, which every group of the stream is given.
    """

    @dg.op(
        name=f"replay_dead_letters__{spec.name}",
        required_resource_keys={spec.resources.redis},
        out=dg.Out(dict[str, Any]),
    )
    def replay_dead_letters(
        context: dg.OpExecutionContext, config: ReplayConfig
    ) -> dg.Output[dict[str, Any]]:
        with redis_of(context, spec.resources).connect() as client:
            if isinstance(spec, TopicDrainSpec):
                report = replay_topic(client, spec.topic, config)
            else:
                report = replay_quarantined(client, spec, config)
        counts = {"replayed": report.replayed, "gone": len(report.gone), "refused": len(report.refused)}
        metadata = {"dry_run": report.is_dry_run, **counts}
        return dg.Output(metadata | {"refused_ids": list(report.refused[:100])}, metadata=metadata)

    @dg.job(name=name or f"replay_dead_letters_{spec.name}", **options)
    def replay_job() -> None:
        replay_dead_letters()

    return replay_job
