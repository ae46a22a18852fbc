"""The streams and topics themselves, as observable assets."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import dagster as dg

from conquiet.queue import peek_backlog
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.described import KIND_TAGS
from dagster_conquiet.partitions import partitions_of
from dagster_conquiet.resources import ResourceKeys
from dagster_conquiet.specs import TopicDrainSpec
from dagster_conquiet.steps.backlog import partition_backlogs
from dagster_conquiet.steps.metadata import definition_metadata, page_link, source_metadata


def build_stream_asset(
    stream: str, *, group: str | None = None, resources: ResourceKeys | None = None, **options: Any
) -> dg.SourceAsset:
    """The stream as an observable asset: its data version is the id of its last entry.

    With a group, an observation has the group's lag too. `options` are those of `observable_source_asset`,
    such as `group_name`, `automation_condition` or `description`. Several of one stream are one asset.

    Examples:
        >>> asset = build_stream_asset("orders")
    """
    keys = resources or ResourceKeys()

    def observe(context: Any) -> dg.ObserveResult:
        redis_streams = keys.redis_of(context)
        with redis_streams.connect() as client:
            backlog = peek_backlog(client, stream=stream, group=group or "")
        metadata = source_metadata(backlog, group) | page_link(stream)
        return dg.ObserveResult(data_version=dg.DataVersion(backlog.last_id), metadata=metadata)

    defaults = {
        "description": f"The messages of stream {stream!r}, as they came in.",
        "metadata": {"stream": stream} | ({} if group is None else {"group": group}) | page_link(stream),
    }
    return _observable(observe, stream, keys, defaults, options)


def build_topic_asset(spec: TopicDrainSpec, **options: Any) -> dg.SourceAsset:
    """The topic as an observable asset of the same partitions as its drain's asset.

    The data version of a partition is the id of its last entry; one that never had a message is not
    observed. Of a spec without `partitions`, an observation adds the partitions that the topic has got.

    Examples:
        >>> asset = build_topic_asset(shipments)
    """
    key, definition = stream_asset_key(spec.topic), partitions_of(spec.topic, spec.partitions)

    def observe(context: Any) -> dg.DataVersionsByPartition:
        redis_streams = spec.resources.redis_of(context)
        with redis_streams.connect() as client:
            backlogs = partition_backlogs(client, spec)
        if isinstance(definition, dg.DynamicPartitionsDefinition):
            context.instance.add_dynamic_partitions(definition.name or "", list(map(str, backlogs)))
        link = page_link(spec.topic)
        if spec.partitions is not None and len(backlogs) > spec.partitions:
            context.log.warning(
                "topic %r has %d partitions, the definitions %d: the others are not observed, and nothing "
                "drains them; without `partitions`, the spec follows the topic",
                *(spec.topic, len(backlogs), spec.partitions),
            )
        for partition, backlog in backlogs.items():
            # Automation would take the first observation of one that never had a message for news.
            is_new = backlog.last_id != "0-0"
            if is_new and (spec.partitions is None or partition < spec.partitions):
                observation = dg.AssetObservation(
                    key,
                    partition=str(partition),
                    metadata=source_metadata(backlog, spec.group) | link,
                    tags={"dagster/data_version": backlog.last_id},
                )
                context.log_event(observation)
        # What is returned would be observed without metadata.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=dg.BetaWarning)
            return dg.DataVersionsByPartition({})

    defaults = {
        "description": f"The messages of topic {spec.topic!r}, as they came in.",
        "metadata": definition_metadata(spec),
        "partitions_def": definition,
    }
    return _observable(observe, spec.topic, spec.resources, defaults, options)


def _observable(
    observe: Callable[[Any], Any],
    source: str,
    keys: ResourceKeys,
    defaults: dict[str, Any],
    options: dict[str, Any],
) -> dg.SourceAsset:
    # A SourceAsset: those of two groups of one stream may be in one project, where two AssetSpecs collide.
    merged = defaults | options
    for name in ("tags", "metadata"):
        merged[name] = defaults.get(name, KIND_TAGS) | (options.get(name) or {})
    with warnings.catch_warnings():
        # The decorator is marked beta, and there is no other; users cannot do anything about it.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        decorate = dg.observable_source_asset(
            key=stream_asset_key(source), required_resource_keys={keys.redis}, **merged
        )
        return decorate(observe)
