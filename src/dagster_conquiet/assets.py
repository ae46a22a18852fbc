"""Assets: what a drain made of a stream, and the stream itself."""

# No `from __future__ import annotations` here: Dagster reads the config's type, which is made on the spot.

import warnings
from typing import Any

import dagster as dg

from conquiet.queue import peek_backlog
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.config import with_defaults
from dagster_conquiet.draining import drain_in_step, redis_of
from dagster_conquiet.metadata import Metadata, backlog_metadata
from dagster_conquiet.specs import DrainSpec, ResourceKeys


def build_drain_asset(
    spec: DrainSpec, *, key: dg.AssetKey | str | list[str] | None = None, **options: Any
) -> dg.AssetsDefinition:
    """An asset that is materialised by draining the stream, downstream of the stream's own asset.

    Its config is a `DrainConfig` with the spec's values as defaults. `options` are those of `@asset`, such as
    `group_name`, `retry_policy` or `freshness_policy`; drains of one stream and group share a `pool`.
    """
    config_type = with_defaults(spec.config)
    options.setdefault("pool", spec.pool)
    options.setdefault("deps", [stream_asset_key(spec.stream)])
    options.setdefault("kinds", {"redis"})

    def drained(
        context: dg.AssetExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # with the spec's own defaults
    ) -> dg.MaterializeResult[Any]:
        _, metadata = drain_in_step(context, spec, config)
        return dg.MaterializeResult(metadata=metadata)

    made: dg.AssetsDefinition = dg.asset(
        key=key or [spec.name],
        required_resource_keys={spec.resources.redis, spec.resources.database},
        **options,
    )(drained)
    return made


def build_stream_asset(
    stream: str, *, group: str | None = None, resources: ResourceKeys | None = None, **options: Any
) -> dg.SourceAsset:
    """The stream as an observable asset: its data version is the id of its last entry.

    With a group, an observation tells the group's lag too. `options` are those of `observable_source_asset`,
    such as `automation_condition` or `description`.
    """
    keys = resources or ResourceKeys()

    def observe(context: Any) -> dg.ObserveResult:
        with redis_of(context, keys).connect() as client:
            backlog = peek_backlog(client, stream=stream, group=group or "")
        metadata: Metadata = {"last_id": dg.MetadataValue.text(backlog.last_id)}
        if group is not None:
            metadata |= backlog_metadata(backlog)
        return dg.ObserveResult(data_version=dg.DataVersion(backlog.last_id), metadata=metadata)

    with warnings.catch_warnings():
        # Ours to know, not the user's: the decorator is marked beta, and there is no other.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        decorate = dg.observable_source_asset(
            key=stream_asset_key(stream), required_resource_keys={keys.redis}, **options
        )
        return decorate(observe)
