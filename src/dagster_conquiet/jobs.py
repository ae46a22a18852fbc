"""Jobs of one step: drain, recover what dead steps left, replay dead letters; and the recovery's schedule."""

# No `from __future__ import annotations` here: Dagster reads the config's type, which is created per job.

import time
from typing import Any

import dagster as dg

from conquiet.mq import DeadLetters, Topics
from dagster_conquiet.config import ClaimStaleConfig, ReplayConfig, with_defaults
from dagster_conquiet.described import KIND_TAGS, WORK_TAGS, tags_of
from dagster_conquiet.ops import build_drain_op, report_without_errors
from dagster_conquiet.specs import AnySpec, DrainSpec
from dagster_conquiet.steps.metadata import definition_metadata, page_link
from dagster_conquiet.steps.recover import recover_in_step
from dagster_conquiet.steps.runs import last_sign_of_life, runs_in_progress


def build_drain_job(
    spec: DrainSpec, *, name: str | None = None, retry_policy: dg.RetryPolicy | None = None, **options: Any
) -> dg.JobDefinition:
    """A job that drains the stream; `options` are those of `@job`.

    Examples:
        >>> job = build_drain_job(orders)
    """
    op = build_drain_op(spec, name=f"drain__{name or spec.name}", retry_policy=retry_policy)
    words = {"description": f"Drains {spec.stream!r} for {spec.group!r}."}
    return _job_of(op, spec, name or f"drain_{spec.name}", words | options)


def build_claim_stale_job(
    spec: DrainSpec, *, name: str | None = None, config: ClaimStaleConfig | None = None, **options: Any
) -> dg.JobDefinition:
    """A job that handles what dead steps left pending and removes their names; `options` are those of `@job`.

    Nothing else takes a message from a step that was killed and not retried: schedule it. The defaults of its
    config are the limits of `spec.config` unless another one is given.

    Examples:
        >>> recovery = build_claim_stale_job(orders)
    """
    config_type = with_defaults(config or ClaimStaleConfig(**spec.config.model_dump()))

    @dg.op(
        name=f"claim_stale__{name or spec.name}",
        description=f"Handles what dead steps left pending in {spec.stream!r} for {spec.group!r}.",
        tags=KIND_TAGS,
        required_resource_keys=spec.resource_keys,
        out=dg.Out(dict[str, Any]),
        pool=f"{spec.pool}_stale",
    )
    def claim_stale(
        context: dg.OpExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # with the caller's own defaults
    ) -> dg.Output[dict[str, Any]]:
        report, metadata = recover_in_step(context, spec, config)
        return dg.Output(report_without_errors(report), metadata=metadata)

    return _job_of(claim_stale, spec, name or f"claim_stale_{spec.name}", options)


def build_claim_stale_schedule(
    job: dg.JobDefinition,
    *,
    cron_schedule: str = "*/5 * * * *",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
    stalled_after_s: float = 3_600.0,
    **options: Any,
) -> dg.ScheduleDefinition:
    """Run the recovery every five minutes, and never twice at once.

    A run that has written no event for `stalled_after_s` does not count: it was killed. `options` are those
    of `@schedule`, such as `name`, `tags` or `execution_timezone`.

    Examples:
        >>> schedule = build_claim_stale_schedule(build_claim_stale_job(orders), cron_schedule="*/10 * * * *")
    """
    # A schedule does not know its code location: another one's job of this name has another stream or group.
    work = {name: job.tags[name] for name in WORK_TAGS if name in job.tags}
    defaults: dict[str, Any] = {
        "name": f"{job.name}_schedule",
        "description": job.description,
        "tags": work,
        "metadata": dict(job.metadata),
    }

    @dg.schedule(job=job, cron_schedule=cron_schedule, default_status=default_status, **(defaults | options))
    def claim_stale_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        for record in runs_in_progress(context.instance, job.name):
            tags = record.dagster_run.tags
            if any(tags.get(name, value) != value for name, value in work.items()):
                continue
            if time.time() - last_sign_of_life(context.instance, record) < stalled_after_s:
                running = record.dagster_run.run_id
                return dg.SkipReason(f"run {running} of {job.name!r} is in progress")
        return dg.RunRequest()

    return claim_stale_schedule


def build_replay_dead_letters_job(
    spec: AnySpec, *, name: str | None = None, **options: Any
) -> dg.JobDefinition:
    """A job that moves dead letters back to where they came from; its config is a `ReplayConfig`.

    Examples:
        >>> replay = build_replay_dead_letters_job(orders)
    """

    @dg.op(
        name=f"replay_dead_letters__{name or spec.name}",
        description=f"Moves dead letters of {spec.source!r} back to where they came from.",
        tags=KIND_TAGS,
        required_resource_keys={spec.resources.redis},
        out=dg.Out(dict[str, Any]),
    )
    def replay(context: dg.OpExecutionContext, config: ReplayConfig) -> dg.Output[dict[str, Any]]:
        with spec.resources.redis_of(context).connect() as client:
            letters = DeadLetters(Topics(client).open(spec.source))
            report = letters.replay_all(**config.model_dump(exclude_none=True))
        counts = {
            "replayed": report.replayed,
            "not_found": len(report.not_found),
            "refused": len(report.refused),
        }
        done: dict[str, Any] = {"dry_run": report.is_dry_run, **counts}
        refused = {"refused_ids": list(report.refused[:100])}
        return dg.Output(done | refused, metadata=done | page_link(spec.source))

    return _job_of(replay, spec, name or f"replay_dead_letters_{spec.name}", options)


def _job_of(op: dg.OpDefinition, spec: AnySpec, name: str, options: dict[str, Any]) -> dg.JobDefinition:
    tags = tags_of(spec) | (options.pop("tags", None) or {})
    defaults: dict[str, Any] = {"description": op.description, "metadata": definition_metadata(spec)}

    @dg.job(name=name, tags=tags, **(defaults | options))
    def job() -> None:
        op()

    return job
