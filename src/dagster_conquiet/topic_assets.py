"""Topics as assets: one Dagster partition for each partition of the topic."""

# No `from __future__ import annotations` here: Dagster reads the config's type, which is made on the spot.

from typing import Any

import dagster as dg

from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.config import with_defaults
from dagster_conquiet.specs import TopicDrainSpec
from dagster_conquiet.topic_draining import drain_partition_in_step


def topic_partitions(partitions: int) -> dg.StaticPartitionsDefinition:
    """The keys "0" to one less than the number of the topic's partitions."""
    return dg.StaticPartitionsDefinition([str(number) for number in range(partitions)])


def build_topic_drain_asset(
    spec: TopicDrainSpec, *, key: dg.AssetKey | str | list[str] | None = None, **options: Any
) -> dg.AssetsDefinition:
    """A partitioned asset: materialising a partition drains the topic's partition of the same number.

    The step holds the partition's lease meanwhile, so that two runs never drain one partition. A message
    that fails is tried again later, by a later run, and is a dead letter after `max_attempts`.
    """
    config_type = with_defaults(spec.config)
    options.setdefault("pool", spec.pool)
    options.setdefault("deps", [stream_asset_key(spec.topic)])
    options.setdefault("kinds", {"redis"})

    def drained(
        context: dg.AssetExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # with the spec's own defaults
    ) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata=drain_partition_in_step(context, spec, config))

    made: dg.AssetsDefinition = dg.asset(
        key=key or [spec.name],
        partitions_def=topic_partitions(spec.partitions),
        required_resource_keys={spec.resources.redis, spec.resources.database},
        **options,
    )(drained)
    return made
