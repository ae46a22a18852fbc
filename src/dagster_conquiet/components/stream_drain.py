"""StreamDrainComponent: a stream, its drain, sensor, recovery and checks from a few lines of YAML."""

# No `from __future__ import annotations` here: the YAML schema is made from the types.

import dagster as dg
from pydantic import Field

from dagster_conquiet.assets import build_drain_asset
from dagster_conquiet.components.attributes import (
    DrainAttributes,
    RecoveryAttributes,
    SensorAttributes,
    check_schedules,
    checks_of,
    described,
    drain_job,
    group_of,
    reference_in,
    servers,
    status_of,
)
from dagster_conquiet.components.scaffolder import StreamDrainScaffolder
from dagster_conquiet.config import ClaimStaleConfig, DrainConfig
from dagster_conquiet.jobs import (
    build_claim_stale_job,
    build_claim_stale_schedule,
    build_replay_dead_letters_job,
)
from dagster_conquiet.sensors import build_backlog_sensor
from dagster_conquiet.sources import build_stream_asset
from dagster_conquiet.specs import DrainSpec


@dg.scaffold_with(StreamDrainScaffolder)
class StreamDrainComponent(dg.Component, DrainAttributes):
    """Drain a stream into a database: the asset, its job and sensor, the recovery, a replay, checks.

    Examples:
        >>> component = StreamDrainComponent(  # mostly in a defs.yaml
        ...     stream="orders", group="billing", handler="shop.handlers:bill", max_messages=5_000
        ... )
    """

    stream: str = Field(description="The key of the stream.")
    max_deliveries: int | None = Field(
        default=DrainConfig().max_deliveries, description="A message delivered more often is a dead letter."
    )
    sensor: SensorAttributes = SensorAttributes()
    recovery: RecoveryAttributes = RecoveryAttributes()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions; nothing is imported, connected or read."""
        limits = self.limits("max_deliveries")
        keys, resources = servers(self.redis_url_variable, self.database_url_variable)
        spec = DrainSpec(
            stream=self.stream,
            group=self.group,
            handler=reference_in(self.handler, context),
            payload=None if self.payload is None else reference_in(self.payload, context),
            config=DrainConfig(**limits),
            resources=keys,
            required_resource_keys=self.resources,
        )
        key = self.asset.key if self.asset else None
        drained = described(build_drain_asset(spec, key=key, retry_policy=self.retry_policy()), self.asset)
        job = drain_job(spec, drained)
        sensor = build_backlog_sensor(
            spec,
            job,
            default_status=status_of(dg.DefaultSensorStatus, self.sensor.is_running),
            **self.sensor.model_dump(exclude={"is_running"}),
        )
        recovery = build_claim_stale_job(
            spec, config=ClaimStaleConfig(**limits, min_idle_ms=self.recovery.min_idle_ms)
        )
        schedule = build_claim_stale_schedule(
            recovery,
            cron_schedule=self.recovery.cron_schedule,
            default_status=status_of(dg.DefaultScheduleStatus, self.recovery.is_running),
        )
        checks = checks_of(spec, self.checks, drained)
        return dg.Definitions(
            assets=[
                build_stream_asset(
                    self.stream, group=self.group, resources=keys, group_name=group_of(self.asset)
                ),
                drained,
            ],
            asset_checks=checks,
            jobs=[job, recovery, build_replay_dead_letters_job(spec)],
            sensors=[sensor],
            schedules=[schedule, *check_schedules(spec, checks, self.checks)],
            resources=resources,
        )
