"""StreamDrainComponent: a stream, its drain, sensor, recovery and checks from a few lines of YAML."""

# No `from __future__ import annotations` here: the YAML schema is made from the types.

from typing import Any

import dagster as dg
from pydantic import Field

from dagster_conquiet.assets import build_drain_asset, build_stream_asset
from dagster_conquiet.checks import build_backlog_check, build_dead_letter_check, build_freshness_check
from dagster_conquiet.config import ClaimStaleConfig, DrainConfig, FailWhen
from dagster_conquiet.jobs import (
    build_claim_stale_job,
    build_claim_stale_schedule,
    build_replay_dead_letters_job,
)
from dagster_conquiet.resources import DatabaseResource, RedisStreamsResource
from dagster_conquiet.sensors import build_backlog_sensor
from dagster_conquiet.specs import DrainSpec

_LIMITS = DrainConfig()


class SensorAttributes(dg.Model, dg.Resolvable):
    """When a run of the drain's job is requested."""

    min_lag: int = 1
    minimum_interval_seconds: int = 30
    pause_after_failure_s: float = 60.0
    is_running: bool = Field(default=True, description="Whether it runs unless it is stopped in the UI.")


class FailAttributes(dg.Model, dg.Resolvable):
    """When messages that failed fail the step; null never does."""

    all_failed: bool = True
    dead_letters: int | None = 1
    failures: int | None = None


class RecoveryAttributes(dg.Model, dg.Resolvable):
    """When what dead steps left is handled."""

    cron_schedule: str = "*/5 * * * *"
    min_idle_ms: int | None = Field(default=None, description="claim_idle_ms of the spec unless given.")
    is_running: bool = Field(default=True, description="Whether it runs unless it is stopped in the UI.")


class CheckAttributes(dg.Model, dg.Resolvable):
    """What the checks warn of; a limit that is not given is not checked."""

    max_lag: int | None = None
    max_age_s: float | None = None
    max_dead_letters: int | None = 0
    cron_schedule: str = "*/5 * * * *"
    is_running: bool = Field(default=True, description="Whether they run unless stopped in the UI.")


class StreamDrainComponent(dg.Component, dg.Model, dg.Resolvable):
    """Drain a stream into a database: the asset, its job and sensor, the recovery, a replay, checks."""

    stream: str = Field(description="The key of the stream.")
    group: str = Field(description="The consumer group.")
    handler: str = Field(description='"package.module:function", called as function(msg, session).')
    asset: dg.ResolvedAssetSpec | None = Field(
        default=None, description="The asset that the drain makes; named after stream and group if not given."
    )
    max_messages: int | None = Field(
        default=_LIMITS.max_messages, description="The most messages that one run handles."
    )
    max_duration_s: float | None = Field(
        default=_LIMITS.max_duration_s, description="No message is begun after this time."
    )
    max_failures: int | None = Field(
        default=_LIMITS.max_failures, description="This many failed messages fail the step."
    )
    max_deliveries: int | None = Field(
        default=_LIMITS.max_deliveries, description="A message delivered more often is a dead letter."
    )
    fail_when: FailAttributes = Field(default_factory=FailAttributes)
    max_retries: int = Field(default=3, description="How often a step that dies or fails is tried again.")
    sensor: SensorAttributes = Field(default_factory=SensorAttributes)
    recovery: RecoveryAttributes = Field(default_factory=RecoveryAttributes)
    checks: CheckAttributes = Field(default_factory=CheckAttributes)
    # Names of variables, not URLs: a password in a URL would be shown in the UI with the definitions.
    redis_url_variable: str | None = Field(
        default=None,
        description="The environment variable with the server's URL; adds the resource `redis_streams`.",
    )
    database_url_variable: str | None = Field(
        default=None,
        description="The environment variable with the database's URL; adds the resource `database`.",
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions; nothing is imported, connected or read."""
        names = ("max_messages", "max_duration_s", "max_failures", "max_deliveries")
        limits: dict[str, Any] = {name: getattr(self, name) for name in names}
        limits["fail_when"] = FailWhen(**self.fail_when.model_dump())
        spec = DrainSpec(
            stream=self.stream, group=self.group, handler=self.handler, config=DrainConfig(**limits)
        )
        drained = self._asset(spec)
        # Without the checks: right after a drain they would find nothing.
        job = dg.define_asset_job(f"drain_{spec.name}", dg.AssetSelection.assets(drained).without_checks())
        sensor = build_backlog_sensor(
            spec,
            job,
            default_status=_status(dg.DefaultSensorStatus, self.sensor.is_running),
            **self.sensor.model_dump(exclude={"is_running"}),
        )
        recovery = build_claim_stale_job(
            spec, config=ClaimStaleConfig(**limits, min_idle_ms=self.recovery.min_idle_ms)
        )
        schedule = build_claim_stale_schedule(
            recovery,
            cron_schedule=self.recovery.cron_schedule,
            default_status=_status(dg.DefaultScheduleStatus, self.recovery.is_running),
        )
        checks = self._checks(spec, drained)
        resources: dict[str, Any] = {}
        if self.redis_url_variable is not None:
            resources["redis_streams"] = RedisStreamsResource(url=dg.EnvVar(self.redis_url_variable))
        if self.database_url_variable is not None:
            resources["database"] = DatabaseResource(url=dg.EnvVar(self.database_url_variable))
        return dg.Definitions(
            assets=[build_stream_asset(self.stream, group=self.group), drained],
            asset_checks=checks,
            jobs=[job, recovery, build_replay_dead_letters_job(spec)],
            sensors=[sensor],
            schedules=[schedule, *self._check_schedules(spec, checks)],
            resources=resources,
        )

    def _asset(self, spec: DrainSpec) -> dg.AssetsDefinition:
        retries = dg.RetryPolicy(max_retries=self.max_retries) if self.max_retries else None
        described = self.asset
        if described is None:
            return build_drain_asset(spec, retry_policy=retries)
        drained = build_drain_asset(spec, key=described.key, retry_policy=retries)
        return drained.map_asset_specs(
            lambda built: described.merge_attributes(deps=built.deps, kinds=built.kinds)
        )

    def _checks(self, spec: DrainSpec, drained: dg.AssetsDefinition) -> list[dg.AssetChecksDefinition]:
        limits, checks = self.checks, []
        if limits.max_lag is not None:
            checks.append(build_backlog_check(spec, max_lag=limits.max_lag, asset=drained))
        if limits.max_age_s is not None:
            checks.append(build_freshness_check(spec, max_age_s=limits.max_age_s, asset=drained))
        if limits.max_dead_letters is not None:
            checks.append(build_dead_letter_check(spec, max_letters=limits.max_dead_letters, asset=drained))
        return checks

    def _check_schedules(
        self, spec: DrainSpec, checks: list[dg.AssetChecksDefinition]
    ) -> list[dg.ScheduleDefinition]:
        if not checks:
            return []
        selection = dg.AssetSelection.checks(*checks)
        job = dg.define_asset_job(f"check_{spec.name}", selection, executor_def=dg.in_process_executor)
        status = _status(dg.DefaultScheduleStatus, self.checks.is_running)
        return [
            dg.ScheduleDefinition(job=job, cron_schedule=self.checks.cron_schedule, default_status=status)
        ]


def _status(statuses: Any, is_running: bool) -> Any:
    return statuses.RUNNING if is_running else statuses.STOPPED
