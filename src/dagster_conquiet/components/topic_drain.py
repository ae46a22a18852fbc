"""TopicDrainComponent: a topic, the drain of its partitions, sensor, replay and checks from YAML."""

# No `from __future__ import annotations` here: the YAML schema is made from the types.

import dagster as dg
from pydantic import Field

from dagster_conquiet.assets import build_topic_drain_asset
from dagster_conquiet.components.attributes import (
    DrainAttributes,
    TopicSensorAttributes,
    check_schedules,
    checks_of,
    described,
    drain_job,
    group_of,
    reference_in,
    servers,
    status_of,
)
from dagster_conquiet.components.scaffolder import TopicDrainScaffolder
from dagster_conquiet.config import TopicDrainConfig
from dagster_conquiet.jobs import build_replay_dead_letters_job
from dagster_conquiet.sensors import build_topic_backlog_sensor
from dagster_conquiet.sources import build_topic_asset
from dagster_conquiet.specs import TopicDrainSpec

_LIMITS = TopicDrainConfig()


@dg.scaffold_with(TopicDrainScaffolder)
class TopicDrainComponent(dg.Component, DrainAttributes):
    """Drain the partitions of a topic into a database: the asset, its job and sensor, a replay, checks.

    Examples:
        >>> component = TopicDrainComponent(  # mostly in a defs.yaml
        ...     topic="shipments", group="couriers", handler="shop.handlers:ship", max_attempts=3
        ... )
    """

    topic: str = Field(description="The topic.")
    partitions: int | None = Field(
        default=None, description="As many as the topic has; not given, the topic is followed as it grows."
    )
    max_attempts: int = Field(
        default=_LIMITS.max_attempts, description="Attempts before a message is a dead letter."
    )
    retry_delay_ms: int = Field(
        default=_LIMITS.retry_delay_ms, description="The wait before the second attempt."
    )
    sensor: TopicSensorAttributes = TopicSensorAttributes()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions; nothing is imported, connected or read."""
        keys, resources = servers(self.redis_url_variable, self.database_url_variable)
        spec = TopicDrainSpec(
            topic=self.topic,
            partitions=self.partitions,
            group=self.group,
            handler=reference_in(self.handler, context),
            payload=None if self.payload is None else reference_in(self.payload, context),
            config=TopicDrainConfig(**self.limits("max_attempts", "retry_delay_ms")),
            resources=keys,
            required_resource_keys=self.resources,
        )
        key = self.asset.key if self.asset else None
        drained = described(
            build_topic_drain_asset(spec, key=key, retry_policy=self.retry_policy()), self.asset
        )
        job = drain_job(spec, drained)
        sensor = build_topic_backlog_sensor(
            spec,
            job,
            default_status=status_of(dg.DefaultSensorStatus, self.sensor.is_running),
            **self.sensor.model_dump(exclude={"is_running"}),
        )
        checks = checks_of(spec, self.checks, drained)
        return dg.Definitions(
            assets=[build_topic_asset(spec, group_name=group_of(self.asset)), drained],
            asset_checks=checks,
            jobs=[job, build_replay_dead_letters_job(spec)],
            sensors=[sensor],
            schedules=check_schedules(spec, checks, self.checks),
            resources=resources,
        )
