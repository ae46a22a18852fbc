"""One drain of one partition inside one step, under the partition's lease."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import dagster as dg

from conquiet.mq import ConsumerConfig, MqAdmin, PartitionDrainReport, RetryPolicy, Topics, drain_partition
from conquiet.queue import Client
from dagster_conquiet.attempts import Attempt, attempt_of
from dagster_conquiet.backlogs import partition_backlogs
from dagster_conquiet.config import TopicDrainConfig
from dagster_conquiet.draining import counted, database_of, redis_of
from dagster_conquiet.interrupts import interrupts_between_messages
from dagster_conquiet.metadata import Metadata, partition_metadata
from dagster_conquiet.specs import TopicDrainSpec, handler_of
from dagster_conquiet.timeline import Timeline
from dagster_conquiet.traces import step_span


def drain_partition_in_step(
    context: dg.AssetExecutionContext, spec: TopicDrainSpec, config: TopicDrainConfig
) -> Metadata:
    """Drain the partition of the step's key; an earlier attempt's lease is taken at once.

    Raises:
        PartitionBusyError: another run, or another consumer, owns the partition.
    """
    partition, timeline = int(context.partition_key), Timeline()
    handler = counted(handler_of(spec.handler), timeline)
    with ExitStack() as stack:
        stack.enter_context(step_span(context))
        client = stack.enter_context(redis_of(context, spec.resources).connect())
        is_stopping = stack.enter_context(interrupts_between_messages())
        report: PartitionDrainReport = drain_partition(
            Topics(client).open(spec.topic),
            partition,
            spec.group,
            handler,
            database_of(context, spec.resources).get_engine(),
            max_messages=config.max_messages,
            max_duration_s=config.max_duration_s,
            idle_ms=config.idle_ms,
            inbox=spec.inbox,
            should_stop=is_stopping,
            **_ownership(client, spec, config, attempt_of(context), partition),
        )
        after = partition_backlogs(client, spec)
    _warn_of_growth(context, spec, len(after))
    return partition_metadata(report, after[partition], timeline)


def _ownership(
    client: Client, spec: TopicDrainSpec, config: TopicDrainConfig, attempt: Attempt, partition: int
) -> dict[str, Any]:
    retry = RetryPolicy(max_attempts=config.max_attempts, base_delay_ms=config.retry_delay_ms)
    owner = MqAdmin(client).owners(spec.topic, spec.group).partitions[partition].owner
    return {
        "config": ConsumerConfig(consumer_name=attempt.consumer_name, retry=retry),
        "replaces": attempt.earlier_names([owner] if owner else []),
    }


def _warn_of_growth(context: dg.AssetExecutionContext, spec: TopicDrainSpec, partitions: int) -> None:
    if partitions > spec.partitions:
        context.log.warning(
            "topic %r has %d partitions, the definitions %d: nothing drains the others",
            *(spec.topic, partitions, spec.partitions),
        )
