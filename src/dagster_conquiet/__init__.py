"""conquiet for Dagster: resources, ops, assets, sensors and checks over Redis Streams queues."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from conquiet.exports import lazy_exports
from conquiet.extras import needs_extra

if TYPE_CHECKING:
    from dagster_conquiet.asset_keys import stream_asset_key as stream_asset_key
    from dagster_conquiet.assets import (
        build_drain_asset as build_drain_asset,
        build_topic_drain_asset as build_topic_drain_asset,
    )
    from dagster_conquiet.checks import (
        build_backlog_check as build_backlog_check,
        build_dead_letter_check as build_dead_letter_check,
        build_freshness_check as build_freshness_check,
        build_lag_growth_check as build_lag_growth_check,
        build_oldest_age_check as build_oldest_age_check,
    )
    from dagster_conquiet.components import (
        ConnectionComponent as ConnectionComponent,
        StreamDrainComponent as StreamDrainComponent,
        TopicDrainComponent as TopicDrainComponent,
    )
    from dagster_conquiet.config import (
        ClaimStaleConfig as ClaimStaleConfig,
        DrainConfig as DrainConfig,
        FailWhen as FailWhen,
        ReplayConfig as ReplayConfig,
        TopicDrainConfig as TopicDrainConfig,
    )
    from dagster_conquiet.decorated import (
        drain_asset as drain_asset,
        drain_op as drain_op,
        spec_of as spec_of,
    )
    from dagster_conquiet.io_manager import RedisStreamIOManager as RedisStreamIOManager
    from dagster_conquiet.jobs import (
        build_claim_stale_job as build_claim_stale_job,
        build_claim_stale_schedule as build_claim_stale_schedule,
        build_drain_job as build_drain_job,
        build_replay_dead_letters_job as build_replay_dead_letters_job,
    )
    from dagster_conquiet.ops import build_drain_op as build_drain_op, build_enqueue_op as build_enqueue_op
    from dagster_conquiet.partitions import topic_partitions as topic_partitions
    from dagster_conquiet.pipes.reader import (
        PipesMessagesLostError as PipesMessagesLostError,
        RedisStreamMessageReader as RedisStreamMessageReader,
    )
    from dagster_conquiet.pipes.writer import RedisStreamMessageWriter as RedisStreamMessageWriter
    from dagster_conquiet.resources import (
        DatabaseResource as DatabaseResource,
        RedisStreamsResource as RedisStreamsResource,
        ResourceKeys as ResourceKeys,
    )
    from dagster_conquiet.sensors import (
        build_backlog_sensor as build_backlog_sensor,
        build_topic_backlog_sensor as build_topic_backlog_sensor,
    )
    from dagster_conquiet.sources import (
        build_stream_asset as build_stream_asset,
        build_topic_asset as build_topic_asset,
    )
    from dagster_conquiet.spark import SparkJobSpec as SparkJobSpec, build_spark_asset as build_spark_asset
    from dagster_conquiet.specs import DrainSpec as DrainSpec, TopicDrainSpec as TopicDrainSpec
    from dagster_conquiet.steps.drain import PartitionMissingError as PartitionMissingError
    from dagster_conquiet.steps.rows import RowsMissingError as RowsMissingError
    from dagster_conquiet.steps.typed_rows import RowError as RowError
    from dagster_conquiet.task_spec import TaskSpec as TaskSpec
    from dagster_conquiet.tasks import build_task_asset as build_task_asset, build_task_op as build_task_op

# On first use: the external process of a Pipes launch imports this package without Dagster.
_NAMES_OF = {
    "asset_keys": "stream_asset_key",
    "assets": "build_drain_asset build_topic_drain_asset",
    "checks": (
        "build_backlog_check build_dead_letter_check build_freshness_check build_lag_growth_check "
        "build_oldest_age_check"
    ),
    "components": "ConnectionComponent StreamDrainComponent TopicDrainComponent",
    "config": "ClaimStaleConfig DrainConfig FailWhen ReplayConfig TopicDrainConfig",
    "decorated": "drain_asset drain_op spec_of",
    "io_manager": "RedisStreamIOManager",
    "jobs": (
        "build_claim_stale_job build_claim_stale_schedule build_drain_job build_replay_dead_letters_job"
    ),
    "ops": "build_drain_op build_enqueue_op",
    "partitions": "topic_partitions",
    "pipes.reader": "PipesMessagesLostError RedisStreamMessageReader",
    "pipes.writer": "RedisStreamMessageWriter",
    "resources": "DatabaseResource RedisStreamsResource ResourceKeys",
    "sensors": "build_backlog_sensor build_topic_backlog_sensor",
    "sources": "build_stream_asset build_topic_asset",
    "spark": "SparkJobSpec build_spark_asset",
    "specs": "DrainSpec TopicDrainSpec",
    "steps.drain": "PartitionMissingError",
    "steps.rows": "RowsMissingError",
    "steps.typed_rows": "RowError",
    "task_spec": "TaskSpec",
    "tasks": "build_task_asset build_task_op",
}

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    _NAMES_OF,
    importing=partial(needs_extra, "dagster", "dagster", "dagster_pipes", part="dagster_conquiet"),
)

__version__ = version("conquiet")

# Not from `dagster` itself: the external process of a Pipes launch has not installed it, nor this.
with suppress(ImportError):
    from dagster_shared.libraries import DagsterLibraryRegistry

    # Its version is not one of Dagster's own.
    DagsterLibraryRegistry.register("conquiet", __version__, is_dagster_package=False)
