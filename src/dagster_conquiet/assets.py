"""Assets: the result of a drain, and the stream itself."""

# No `from __future__ import annotations` here: Dagster reads the config's type, which is created per spec.

import warnings
from typing import Any

import dagster as dg

from conquiet.queue import peek_backlog
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.config import with_defaults
from dagster_conquiet.resources import ResourceKeys
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec
from dagster_conquiet.steps.drain import drain_in_step
from dagster_conquiet.steps.metadata import Metadata, backlog_metadata

AssetKey = dg.AssetKey | str | list[str]


def build_drain_asset(spec: DrainSpec, *, key: AssetKey | None = None, **options: Any) -> dg.AssetsDefinition:
    """An asset that is materialised by draining the stream, downstream of the stream's own asset.

    Its config is a `DrainConfig` with the spec's values as defaults. `options` are those of `@asset`, such as
    `group_name`, `retry_policy` or `freshness_policy`; drains of one stream and group share a `pool`.
    """
    return _drain_asset(spec, key, options)


def build_topic_drain_asset(
    spec: TopicDrainSpec, *, key: AssetKey | None = None, **options: Any
) -> dg.AssetsDefinition:
    """A partitioned asset: materialising a partition drains the topic's partition of the same number.

    The step owns the partition's lease meanwhile, so that two runs never drain one partition. A message
    that fails is tried again later, by a later run, and is a dead letter after `max_attempts`.
    """
    return _drain_asset(spec, key, options | {"partitions_def": topic_partitions(spec.partitions)})


def topic_partitions(partitions: int) -> dg.StaticPartitionsDefinition:
    """The keys "0" to one less than the number of the topic's partitions."""
    return dg.StaticPartitionsDefinition([str(number) for number in range(partitions)])


def build_stream_asset(
    stream: str, *, group: str | None = None, resources: ResourceKeys | None = None, **options: Any
) -> dg.SourceAsset:
    """The stream as an observable asset: its data version is the id of its last entry.

    With a group, an observation has the group's lag too. `options` are those of `observable_source_asset`,
    such as `automation_condition` or `description`.
    """
    keys = resources or ResourceKeys()

    def observe(context: Any) -> dg.ObserveResult:
        with keys.redis_of(context).connect() as client:
            backlog = peek_backlog(client, stream=stream, group=group or "")
        metadata: Metadata = {"last_id": dg.MetadataValue.text(backlog.last_id)}
        if group is not None:
            metadata |= backlog_metadata(backlog)
        return dg.ObserveResult(data_version=dg.DataVersion(backlog.last_id), metadata=metadata)

    with warnings.catch_warnings():
        # The decorator is marked beta, and there is no other; users cannot do anything about it.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        decorate = dg.observable_source_asset(
            key=stream_asset_key(stream), required_resource_keys={keys.redis}, **options
        )
        return decorate(observe)


def _drain_asset(spec: AnySpec, key: AssetKey | None, options: dict[str, Any]) -> dg.AssetsDefinition:
    config_type = with_defaults(spec.config)
    defaults: dict[str, Any] = {
        "pool": spec.pool,
        "deps": [stream_asset_key(spec.source)],
        "kinds": {"redis"},
    }

    def drained(
        context: dg.AssetExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # with the spec's own defaults
    ) -> dg.MaterializeResult[Any]:
        _, metadata = drain_in_step(context, spec, config)
        return dg.MaterializeResult(metadata=metadata)

    asset: dg.AssetsDefinition = dg.asset(
        key=key or [spec.name],
        required_resource_keys={spec.resources.redis, spec.resources.database},
        **(defaults | options),
    )(drained)
    return asset
