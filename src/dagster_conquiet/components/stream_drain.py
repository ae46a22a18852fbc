"""StreamDrainComponent: a stream, its drain, sensor, recovery and checks from a few lines of YAML."""

# No `from __future__ import annotations` here: the YAML schema is made from the types.

from typing import Any

import dagster as dg
from pydantic import Field

from dagster_conquiet.assets import build_drain_asset
from dagster_conquiet.components.attributes import (
    ORDER,
    CheckAttributes,
    FailAttributes,
    RecoveryAttributes,
    SensorAttributes,
    check_schedules,
    checks_of,
    described,
    drain_job,
    group_of,
    handler_in,
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

_LIMITS = DrainConfig()


@dg.scaffold_with(StreamDrainScaffolder)
class StreamDrainComponent(dg.Component, dg.Model, dg.Resolvable):
    """Drain a stream into a database: the asset, its job and sensor, the recovery, a replay, checks.

    Examples:
        >>> component = StreamDrainComponent(  # mostly in a defs.yaml
        ...     stream="orders", group="billing", handler="shop.handlers:bill", max_messages=5_000
        ... )
    """

    stream: str = Field(description="The key of the stream.")
    group: str = Field(description="The consumer group.")
    handler: str = Field(
        description='"package.module:function", or ".module:function" in the folder of the component; called '
        "as function(msg, session)."
    )
    payload: str | None = Field(
        default=None,
        description='The type of the messages\' payloads as "package.module:Class"; a dict unless given.',
    )
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
    concurrency: int = Field(
        default=_LIMITS.concurrency, description="How many messages, or batches, are handled at once."
    )
    order_by: str | None = Field(
        default=None, description="With more than one: the field whose equal values keep their order."
    )
    no_order: bool = Field(default=False, description="With more than one: messages have no order.")
    batch_size: int = Field(
        default=_LIMITS.batch_size,
        description="The most messages of one read, or of a batch handler's transaction.",
    )
    fail_when: FailAttributes = FailAttributes()
    max_retries: int = Field(default=3, description="How often a step that dies or fails is tried again.")
    sensor: SensorAttributes = SensorAttributes()
    recovery: RecoveryAttributes = RecoveryAttributes()
    checks: CheckAttributes = CheckAttributes()
    # Names of variables, not URLs: a password in a URL would be shown in the UI with the definitions.
    redis_url_variable: str | None = Field(
        default=None,
        description="The environment variable with the server's URL; else the resource `redis_streams`.",
    )
    database_url_variable: str | None = Field(
        default=None,
        description="The environment variable with the database's URL; else the resource `database`.",
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions; nothing is imported, connected or read."""
        names = ("max_messages", "max_duration_s", "max_failures", "max_deliveries", *ORDER)
        limits: dict[str, Any] = {name: getattr(self, name) for name in names}
        limits["fail_when"] = self.fail_when.rule()
        keys, resources = servers(self.redis_url_variable, self.database_url_variable)
        spec = DrainSpec(
            stream=self.stream,
            group=self.group,
            handler=handler_in(self.handler, context),
            payload=None if self.payload is None else handler_in(self.payload, context),
            config=DrainConfig(**limits),
            resources=keys,
        )
        retries = dg.RetryPolicy(max_retries=self.max_retries) if self.max_retries else None
        key = self.asset.key if self.asset else None
        drained = described(build_drain_asset(spec, key=key, retry_policy=retries), self.asset)
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
