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
from dagster_conquiet.steps.failing import log_failures, reason_to_fail, sentence_of
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
        dagster.Failure: messages failed, and `fail_when` or `max_failures` says that the step does.
        PartitionBusyError: another run, or another consumer, owns the partition.
    """
    with opened_step(context, spec, config) as (client, attempt, limits):
        if isinstance(spec, TopicDrainSpec):
            drain_it = _partition_drain(context, client, spec, config, attempt)
            return run_drain(context, client, spec, config, partial(drain_it, limits=limits))
        queue = queue_of(client, spec, attempt)
        earlier = _earlier_attempts(context, attempt, queue.consumer_names())
        drain_it = partial(drain, queue, limits=limits, take_over_from=earlier)
        return run_drain(context, client, spec, config, drain_it)


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
    context: Context, client: Client, spec: AnySpec, config: LimitsConfig, drain_it: Drain
) -> tuple[DrainReport, Metadata]:
    """Run the drain with the spec's handler.

    Raises:
        dagster.Failure: messages failed, and the rule says that the step does; its metadata has the counts.
    """
    timeline = Timeline()
    handler, engine = timeline.counting(spec.load_handler()), spec.resources.database_of(context).get_engine()
    try:
        report = drain_it(handler=handler, engine=engine, inbox=spec.inbox)
    except DrainError as error:
        report = error.report
    after = peek_backlog(client, stream=report.stream, group=report.group)
    metadata = drain_metadata(report, after, timeline)
    log_failures(context, report.failures, with_texts=config.log_errors)
    if reason := reason_to_fail(report, spec.fail_when or config.fail_when):
        # Outside of the handling of the error, whose text may quote a message. To do the same again at once
        # helps if servers are unavailable, and not if messages are bad.
        is_outage = report.stopped_by == "max_failures"
        raise dg.Failure(sentence_of(report, reason), metadata=metadata, allow_retries=is_outage)
    return report, metadata


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
