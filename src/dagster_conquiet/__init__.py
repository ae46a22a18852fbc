"""conquiet for Dagster: resources, ops, assets, sensors and checks over Redis Streams queues."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conquiet.extras import needs_extra

if TYPE_CHECKING:
    from dagster_conquiet.asset_keys import stream_asset_key
    from dagster_conquiet.assets import (
        build_drain_asset,
        build_stream_asset,
        build_topic_drain_asset,
        topic_partitions,
    )
    from dagster_conquiet.checks import build_backlog_check, build_dead_letter_check, build_freshness_check
    from dagster_conquiet.components import StreamDrainComponent
    from dagster_conquiet.config import ClaimStaleConfig, DrainConfig, ReplayConfig, TopicDrainConfig
    from dagster_conquiet.io_manager import RedisStreamIOManager
    from dagster_conquiet.jobs import (
        build_claim_stale_job,
        build_claim_stale_schedule,
        build_drain_job,
        build_replay_dead_letters_job,
    )
    from dagster_conquiet.ops import build_drain_op, build_enqueue_op
    from dagster_conquiet.pipes import RedisStreamMessageReader, RedisStreamMessageWriter
    from dagster_conquiet.resources import DatabaseResource, RedisStreamsResource, ResourceKeys
    from dagster_conquiet.sensors import build_backlog_sensor, build_topic_backlog_sensor
    from dagster_conquiet.spark import SparkJobSpec, build_spark_asset
    from dagster_conquiet.specs import DrainSpec, TopicDrainSpec
    from dagster_conquiet.steps.rows import RowsMissingError

# Loaded on first use: the external process of a Pipes launch imports this package without Dagster.
_HOME_OF = {
    "ClaimStaleConfig": "config",
    "DatabaseResource": "resources",
    "DrainConfig": "config",
    "DrainSpec": "specs",
    "RedisStreamIOManager": "io_manager",
    "RedisStreamMessageReader": "pipes",
    "RedisStreamMessageWriter": "pipes",
    "RedisStreamsResource": "resources",
    "ReplayConfig": "config",
    "ResourceKeys": "resources",
    "RowsMissingError": "steps.rows",
    "SparkJobSpec": "spark",
    "StreamDrainComponent": "components",
    "TopicDrainConfig": "config",
    "TopicDrainSpec": "specs",
    "build_backlog_check": "checks",
    "build_backlog_sensor": "sensors",
    "build_claim_stale_job": "jobs",
    "build_claim_stale_schedule": "jobs",
    "build_dead_letter_check": "checks",
    "build_drain_asset": "assets",
    "build_drain_job": "jobs",
    "build_drain_op": "ops",
    "build_enqueue_op": "ops",
    "build_freshness_check": "checks",
    "build_replay_dead_letters_job": "jobs",
    "build_spark_asset": "spark",
    "build_stream_asset": "assets",
    "build_topic_backlog_sensor": "sensors",
    "build_topic_drain_asset": "assets",
    "stream_asset_key": "asset_keys",
    "topic_partitions": "assets",
}

__all__ = [
    "ClaimStaleConfig",
    "DatabaseResource",
    "DrainConfig",
    "DrainSpec",
    "RedisStreamIOManager",
    "RedisStreamMessageReader",
    "RedisStreamMessageWriter",
    "RedisStreamsResource",
    "ReplayConfig",
    "ResourceKeys",
    "RowsMissingError",
    "SparkJobSpec",
    "StreamDrainComponent",
    "TopicDrainConfig",
    "TopicDrainSpec",
    "build_backlog_check",
    "build_backlog_sensor",
    "build_claim_stale_job",
    "build_claim_stale_schedule",
    "build_dead_letter_check",
    "build_drain_asset",
    "build_drain_job",
    "build_drain_op",
    "build_enqueue_op",
    "build_freshness_check",
    "build_replay_dead_letters_job",
    "build_spark_asset",
    "build_stream_asset",
    "build_topic_backlog_sensor",
    "build_topic_drain_asset",
    "stream_asset_key",
    "topic_partitions",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dagster_conquiet' has no attribute {name!r}")
    with needs_extra("dagster", "dagster", "dagster_pipes", part="dagster_conquiet"):
        value = getattr(import_module(f"dagster_conquiet.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
