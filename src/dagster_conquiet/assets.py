"""Assets that are materialised by draining a stream or a topic."""

# No `from __future__ import annotations` here: Dagster reads the config's type, which is created per spec.

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from conquiet.consume.report import COUNTS
from conquiet.queue import QueueMessage
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.config import with_defaults
from dagster_conquiet.described import KINDS, code_references, description_of
from dagster_conquiet.partitions import partitions_of
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec
from dagster_conquiet.steps.drain import drain_in_step, read_again_in_step
from dagster_conquiet.steps.metadata import definition_metadata
from dagster_conquiet.steps.ranges import drain_in_turn, failure_of
from dagster_conquiet.steps.retained import Retained

AssetKey = dg.AssetKey | str | list[str]
#: The name of a field of the payload, or a function of the message, by which an asset is partitioned.
PartitionBy = str | Callable[[QueueMessage], str]
#: Metadata that a run of several partitions has of each of them, or not at all.
_OF_ONE_PARTITION = frozenset({*COUNTS, "dagster/row_count", "first_id", "last_id"})
#: Dagster lists all partitions of the run again for each one that metadata are added to.
_MOST_COUNTED = 500


def build_drain_asset(
    spec: DrainSpec,
    *,
    key: AssetKey | None = None,
    partition_by: PartitionBy | None = None,
    **options: Any,
) -> dg.AssetsDefinition:
    """An asset that is materialised by draining the stream, downstream of the stream's own asset.

    Its config is a `DrainConfig` with the spec's values as defaults. `options` are those of `@asset`, such as
    `group_name`, `retry_policy` or `freshness_policy`; drains of one stream and group share a `pool`.

    With `partitions_def`, a materialisation handles again what the stream still has of its partitions, also
    what the group has handled: of a time window by the times in the entry ids, else of the keys by
    `partition_by`.

    Examples:
        >>> asset = build_drain_asset(orders, key="bills", group_name="shop")
    """
    partitions = options.get("partitions_def")
    if partition_by is None and not isinstance(partitions, dg.TimeWindowPartitionsDefinition | None):
        raise ValueError(
            "partitions_def of the asset of a stream must be of time windows, or with partition_by, the name "
            "of a field of the payload or a function of the message"
        )
    return _drain_asset(spec, key, options, partition_by)


def build_topic_drain_asset(
    spec: TopicDrainSpec, *, key: AssetKey | None = None, **options: Any
) -> dg.AssetsDefinition:
    """A partitioned asset: materialising a partition drains the topic's partition of the same number.

    The step owns the partition's lease meanwhile, so that two runs never drain one partition. A message
    that fails is tried again later, by a later run, and is a dead letter after `max_attempts`. With
    `backfill_policy=BackfillPolicy.single_run()` one step drains all partitions of a backfill, in turn.

    Examples:
        >>> asset = build_topic_drain_asset(shipments, key="shipped")
    """
    return _drain_asset(
        spec, key, {"partitions_def": partitions_of(spec.topic, spec.partitions)} | options, None
    )


def _drain_asset(
    spec: AnySpec, key: AssetKey | None, options: dict[str, Any], partition_by: PartitionBy | None
) -> dg.AssetsDefinition:
    config_type = with_defaults(spec.config)
    defaults: dict[str, Any] = {
        "pool": spec.pool,
        "deps": [stream_asset_key(spec.source)],
        "kinds": KINDS,
        "description": description_of(spec),
    }
    metadata = definition_metadata(spec) | code_references(spec) | (options.get("metadata") or {})
    options = options | {"metadata": metadata}
    if options.get("description", "") is None:
        del options["description"]

    def drained(
        context: dg.AssetExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # with the spec's own defaults
    ) -> dg.MaterializeResult[Any]:
        if isinstance(spec, TopicDrainSpec):
            return _drain_partitions(context, spec, config)
        if "partitions_def" in options:
            return _read_again(context, spec, config, partition_by)
        _, metadata = drain_in_step(context, spec, config)
        return dg.MaterializeResult(metadata=metadata)

    drained.spec = spec  # type: ignore[attr-defined]  # for spec_of
    if "name" not in options:
        options = options | {"key": key or [spec.name]}
    needed = {*spec.resource_keys, *options.pop("required_resource_keys", ())}
    asset: dg.AssetsDefinition = dg.asset(required_resource_keys=needed, **(defaults | options))(drained)
    return asset


def _drain_partitions(
    context: dg.AssetExecutionContext, spec: TopicDrainSpec, config: Any
) -> dg.MaterializeResult[Any]:
    keys = list(context.partition_keys)
    if len(keys) == 1:
        _, metadata = drain_in_step(context, spec, config, int(keys[0]))
        return dg.MaterializeResult(metadata=metadata)
    drained, failed = drain_in_turn(context, spec, config, keys)
    if failed:
        # Of a step that fails Dagster records nothing; these partitions are drained all the same.
        for key, metadata in drained.items():
            context.log_event(dg.AssetMaterialization(context.asset_key, partition=key, metadata=metadata))
        raise failure_of(failed)
    for key, metadata in drained.items():
        context.add_asset_metadata(metadata, partition_key=key)
    handled = sum(metadata["handled"].value for metadata in drained.values())
    return dg.MaterializeResult(metadata={"handled_in_all_partitions": handled})


def _read_again(
    context: dg.AssetExecutionContext, spec: DrainSpec, config: Any, partition_by: PartitionBy | None
) -> dg.MaterializeResult[Any]:
    keys = list(context.partition_keys)
    metadata, outcomes = read_again_in_step(context, spec, config, _retained(context, keys, partition_by))
    if len(keys) == 1:
        return dg.MaterializeResult(metadata=metadata)
    # What is said of all would be plotted as if each of them had it.
    for key in keys if len(keys) <= _MOST_COUNTED else ():
        counts = {name: outcomes.get(key, {}).get(name, 0) for name in ("handled", "skipped", "failed")}
        context.add_asset_metadata(counts | {"dagster/row_count": counts["handled"]}, partition_key=key)
    of_all = {name: value for name, value in metadata.items() if name not in _OF_ONE_PARTITION}
    return dg.MaterializeResult(metadata=of_all | {"handled_in_all_partitions": metadata["handled"]})


def _retained(
    context: dg.AssetExecutionContext, keys: Sequence[str], partition_by: PartitionBy | None
) -> Retained:
    if partition_by is None:
        start, end = context.partition_time_window
        return Retained(
            start_ms=_ms_of(start), end_ms=_ms_of(end), partition_of=_partition_by_time(context, keys)
        )
    wanted = set(keys)

    def partition_of(msg: QueueMessage) -> str | None:
        key = msg.payload.get(partition_by) if isinstance(partition_by, str) else partition_by(msg)
        return str(key) if str(key) in wanted else None

    return Retained(partition_of=partition_of)


def _partition_by_time(
    context: dg.AssetExecutionContext, keys: Sequence[str]
) -> Callable[[QueueMessage], str]:
    if len(keys) == 1:
        return lambda _msg: keys[0]
    definition: Any = context.assets_def.partitions_def
    starts = sorted((_ms_of(definition.time_window_for_partition_key(key).start), key) for key in keys)
    times = [at for at, _ in starts]

    def partition_of(msg: QueueMessage) -> str:
        return starts[bisect_right(times, int(msg.id.partition("-")[0])) - 1][1]

    return partition_of


def _ms_of(at: datetime) -> int:
    return int(at.timestamp() * 1000)
