"""One drain in one step, of a stream or of a partition: under the attempt's own consumer name, one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dagster as dg

from conquiet.consume import DrainLimits, DrainReport, drain
from conquiet.errors import DrainError
from conquiet.mq import ConsumerConfig, MqAdmin, RetryPolicy, Topics, drain_partition
from conquiet.queue import Client, QueueConfig, RedisStreamsQueue, peek_backlog
from dagster_conquiet.config import LimitsConfig, TopicDrainConfig
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec
from dagster_conquiet.steps.attempts import Attempt, Context, attempt_of
from dagster_conquiet.steps.interrupts import interrupts_between_messages
from dagster_conquiet.steps.metadata import Metadata, drain_metadata
from dagster_conquiet.steps.timeline import Timeline

#: `drain`, `drain_stale` or `drain_partition` with everything but handler, engine and inbox.
Drain = Callable[..., DrainReport]


def drain_in_step(context: Context, spec: AnySpec, config: Any) -> tuple[DrainReport, Metadata]:
    """Drain the stream, or the partition of the step's key, and first what earlier attempts left.

    Earlier attempts are those of this step in this run and in the runs that it retries.

    Args:
        config: of the same type as `spec.config`.

    Raises:
        DrainError: `max_failures` messages of the stream failed; they are pending.
        dagster.Failure: `max_failures` messages of the partition failed.
        PartitionBusyError: another run, or another consumer, owns the partition.
    """
    with opened_step(context, spec, config) as (client, attempt, limits):
        if isinstance(spec, TopicDrainSpec):
            drain_it = _partition_drain(context, client, spec, config, attempt)
            return run_drain(context, client, spec, partial(drain_it, limits=limits))
        queue = queue_of(client, spec, attempt)
        earlier = _earlier_attempts(context, attempt, queue.consumer_names())
        drain_it = partial(drain, queue, limits=limits, take_over_from=earlier)
        return run_drain(context, client, spec, drain_it)


@contextmanager
def opened_step(
    context: Context, spec: AnySpec, config: LimitsConfig
) -> Iterator[tuple[Client, Attempt, DrainLimits]]:
    """The step's client, its attempt, and its limits; an interrupt is raised when the block ends."""
    attempt, redis_streams = attempt_of(context), spec.resources.redis_of(context)
    with attempt.span(), redis_streams.connect() as client, interrupts_between_messages() as is_interrupted:
        yield client, attempt, config.limits(is_interrupted)


def queue_of(client: Client, spec: DrainSpec, attempt: Attempt) -> RedisStreamsQueue:
    """The stream's queue under the name of the attempt."""
    config = QueueConfig(spec.stream, spec.group, attempt.consumer_name, claim_idle_ms=spec.claim_idle_ms)
    return RedisStreamsQueue(client, config)


def run_drain(
    context: Context, client: Client, spec: AnySpec, drain_it: Drain
) -> tuple[DrainReport, Metadata]:
    """Run the drain with the spec's handler; failed messages fail the step only if they end the drain."""
    timeline = Timeline()
    handler, engine = timeline.counting(spec.load_handler()), spec.resources.database_of(context).get_engine()
    try:
        report = drain_it(handler=handler, engine=engine, inbox=spec.inbox)
    except DrainError as error:
        if error.report.stopped_by == "max_failures":
            raise
        report = error.report
        context.log.warning("%s", error)
    if report.stopped_by == "max_failures":
        raise dg.Failure(
            f"max_failures ended the drain of stream {report.stream!r} for group {report.group!r}: "
            f"{report.retried} messages are retried later, {report.dead_lettered} are dead letters"
        )
    after = peek_backlog(client, stream=report.stream, group=report.group)
    return report, drain_metadata(report, after, timeline)


def _partition_drain(
    context: Context, client: Client, spec: TopicDrainSpec, config: TopicDrainConfig, attempt: Attempt
) -> Drain:
    topic, partition = Topics(client).open(spec.topic), int(context.partition_key)
    if topic.partition_count > spec.partitions:
        context.log.warning(
            "topic %r has %d partitions, the definitions %d: nothing drains the others",
            *(spec.topic, topic.partition_count, spec.partitions),
        )
    owner = MqAdmin(client).owners(spec.topic, spec.group).partitions[partition].owner
    consumer = ConsumerConfig(
        consumer_name=attempt.consumer_name,
        retry=RetryPolicy(max_attempts=config.max_attempts, base_delay_ms=config.retry_delay_ms),
        take_over_from=_earlier_attempts(context, attempt, [owner] if owner else []),
    )
    return partial(drain_partition, topic, partition, spec.group, config=consumer)


def _earlier_attempts(context: Context, attempt: Attempt, names: list[str]) -> tuple[str, ...]:
    earlier = attempt.earlier_names(names)
    if earlier:
        context.log.info("takes over from %d earlier attempts: %s", len(earlier), ", ".join(earlier))
    return tuple(earlier)
