"""Assets: the result of a drain, and the stream or topic itself."""

# No `from __future__ import annotations` here: Dagster reads the config's type, which is created per spec.

import warnings
from collections.abc import Callable
from typing import Any

import dagster as dg

from conquiet.mq import Topics
from conquiet.queue import QueueMessage, peek_backlog
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.config import with_defaults
from dagster_conquiet.described import REDIS_KIND, code_references, description_of
from dagster_conquiet.partitions import dynamic_topic_partitions, topic_partitions
from dagster_conquiet.resources import ResourceKeys
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec
from dagster_conquiet.steps.drain import drain_in_step, read_again_in_step
from dagster_conquiet.steps.metadata import Metadata, backlog_metadata
from dagster_conquiet.steps.retained import Retained

AssetKey = dg.AssetKey | str | list[str]
#: The name of a field of the payload, or a function of the message, by which an asset is partitioned.
PartitionBy = str | Callable[[QueueMessage], str]


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
    return _drain_asset(spec, key, {"partitions_def": partitions_of(spec)} | options, None)


def partitions_of(spec: TopicDrainSpec) -> dg.PartitionsDefinition[str]:
    """As many as the spec says, or those that the topic has when it is observed."""
    if spec.partitions is None:
        return dynamic_topic_partitions(spec.topic)
    return topic_partitions(spec.partitions)


def build_stream_asset(
    stream: str, *, group: str | None = None, resources: ResourceKeys | None = None, **options: Any
) -> dg.SourceAsset:
    """The stream as an observable asset: its data version is the id of its last entry.

    With a group, an observation has the group's lag too. `options` are those of `observable_source_asset`,
    such as `automation_condition` or `description`.

    Examples:
        >>> asset = build_stream_asset("orders")
    """
    keys = resources or ResourceKeys()

    def observe(context: Any) -> dg.ObserveResult:
        with keys.redis_of(context).connect() as client:
            backlog = peek_backlog(client, stream=stream, group=group or "")
        metadata: Metadata = {"last_id": dg.MetadataValue.text(backlog.last_id)}
        if group is not None:
            metadata |= backlog_metadata(backlog)
        return dg.ObserveResult(data_version=dg.DataVersion(backlog.last_id), metadata=metadata)

    words = {"description": f"The messages of stream {stream!r}, as they came in."}
    return _observable(observe, stream, keys, words | options)


def build_topic_asset(spec: TopicDrainSpec, **options: Any) -> dg.SourceAsset:
    """The topic as an observable asset of the same partitions as its drain's asset.

    The data version of a partition is the id of its last entry. Of a spec without `partitions`, an
    observation adds the partitions that the topic has got.

    Examples:
        >>> asset = build_topic_asset(shipments)
    """
    definition = partitions_of(spec)

    def observe(context: Any) -> dg.DataVersionsByPartition:
        with spec.resources.redis_of(context).connect() as client:
            topic = Topics(client).open(spec.topic)
            last_ids = {
                str(partition): peek_backlog(
                    client, stream=topic.keys.stream(partition), group=spec.group
                ).last_id
                for partition in topic.partitions
                if spec.partitions is None or partition < spec.partitions
            }
        if isinstance(definition, dg.DynamicPartitionsDefinition):
            context.instance.add_dynamic_partitions(definition.name, list(last_ids))
        return dg.DataVersionsByPartition(last_ids)

    words = {"description": f"The messages of topic {spec.topic!r}, as they came in."}
    return _observable(observe, spec.topic, spec.resources, {"partitions_def": definition} | words | options)


def _observable(
    observe: Callable[[Any], Any], source: str, keys: ResourceKeys, options: dict[str, Any]
) -> dg.SourceAsset:
    options = options | {"tags": REDIS_KIND | (options.get("tags") or {})}
    with warnings.catch_warnings():
        # The decorator is marked beta, and there is no other; users cannot do anything about it.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        decorate = dg.observable_source_asset(
            key=stream_asset_key(source), required_resource_keys={keys.redis}, **options
        )
        return decorate(observe)


def _drain_asset(
    spec: AnySpec, key: AssetKey | None, options: dict[str, Any], partition_by: PartitionBy | None
) -> dg.AssetsDefinition:
    config_type = with_defaults(spec.config)
    defaults: dict[str, Any] = {
        "pool": spec.pool,
        "deps": [stream_asset_key(spec.source)],
        "kinds": {"redis"},
        "description": description_of(spec),
    }
    options = options | {"metadata": code_references(spec) | (options.get("metadata") or {})}
    if options.get("description", "") is None:
        del options["description"]

    def drained(
        context: dg.AssetExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # with the spec's own defaults
    ) -> dg.MaterializeResult[Any]:
        if isinstance(spec, TopicDrainSpec):
            return _drain_partitions(context, spec, config)
        if "partitions_def" in options:
            _, metadata = read_again_in_step(context, spec, config, _retained(context, partition_by))
        else:
            _, metadata = drain_in_step(context, spec, config)
        return dg.MaterializeResult(metadata=metadata)

    drained.spec = spec  # type: ignore[attr-defined]  # for spec_of
    if "name" not in options:
        options = options | {"key": key or [spec.name]}
    asset: dg.AssetsDefinition = dg.asset(
        required_resource_keys=spec.resource_keys,
        **(defaults | options),
    )(drained)
    return asset


def _drain_partitions(
    context: dg.AssetExecutionContext, spec: TopicDrainSpec, config: Any
) -> dg.MaterializeResult[Any]:
    keys = list(context.partition_keys)
    if len(keys) == 1:
        _, metadata = drain_in_step(context, spec, config, int(keys[0]))
        return dg.MaterializeResult(metadata=metadata)
    reports = []
    for key in keys:
        report, metadata = drain_in_step(context, spec, config, int(key))
        reports.append(report)
        context.add_asset_metadata(metadata, partition_key=key)
    handled = sum(report.handled for report in reports)
    return dg.MaterializeResult(metadata={"handled_in_all_partitions": handled})


def _retained(context: dg.AssetExecutionContext, partition_by: PartitionBy | None) -> Retained:
    if partition_by is None:
        start, end = context.partition_time_window
        return Retained(start_ms=int(start.timestamp() * 1000), end_ms=int(end.timestamp() * 1000))
    keys = set(context.partition_keys)

    def is_wanted(msg: QueueMessage) -> bool:
        key = msg.payload.get(partition_by) if isinstance(partition_by, str) else partition_by(msg)
        return str(key) in keys

    return Retained(is_wanted=is_wanted)
