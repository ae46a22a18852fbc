"""One drain in one step, of a stream or of a partition: under the attempt's own consumer name, one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import dagster as dg
from sqlalchemy import Engine

from conquiet.consume import DrainLimits, DrainReport, drain
from conquiet.consume.engine import DrainLoop
from conquiet.consume.handler_kinds import PayloadType, new_handling
from conquiet.consume.handling import Handler
from conquiet.db import Inbox
from conquiet.errors import ConquietError, DrainError
from conquiet.logs import hiding_error_texts
from conquiet.mq import ConsumerConfig, MqAdmin, RetryPolicy, Topic, Topics, drain_partition
from conquiet.queue import BacklogStats, Client, QueueConfig, QueueMessage, RedisStreamsQueue, peek_backlog
from dagster_conquiet.config import LimitsConfig, TopicDrainConfig
from dagster_conquiet.handlers import bound_handler
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec
from dagster_conquiet.steps.attempts import Attempt, Context, attempt_of
from dagster_conquiet.steps.failures import (
    TOO_SOON,
    OutageFailure,
    log_failures,
    outage_in_words,
    reason_partition_fails,
    reason_to_fail,
    sentence_of,
)
from dagster_conquiet.steps.interrupts import interrupts_between_messages
from dagster_conquiet.steps.metadata import Metadata, drain_metadata, page_link
from dagster_conquiet.steps.retained import Retained, RetainedChannel
from dagster_conquiet.steps.timeline import Timeline

#: `drain`, `drain_stale` or `drain_partition` with everything but handler, engine and inbox.
Drain = Callable[..., DrainReport]


class PartitionMissingError(ConquietError):
    """The definitions have a partition that the topic does not have.

    Examples:
        >>> str(PartitionMissingError("shipments", partition=4, count=2)).partition(":")[0]
        "topic 'shipments' has no partition 4, only 0 to 1"
    """

    def __init__(self, topic: str, *, partition: int, count: int) -> None:
        self.topic = topic
        self.partition = partition
        self.count = count
        super().__init__(
            f"topic {topic!r} has no partition {partition}, only 0 to {count - 1}: set partitions={count} in "
            "its TopicDrainSpec, leave it out to follow the topic, or let Topics.grow add partitions"
        )


def drain_in_step(
    context: Context, spec: AnySpec, config: Any, partition: int | None = None
) -> tuple[DrainReport, Metadata]:
    """Drain the stream, or this partition of the topic, and first what earlier attempts left.

    Earlier attempts are those of this step in this run and in the runs that it retries.

    Args:
        config: of the same type as `spec.config`.

    Raises:
        dagster.Failure: messages failed, and `fail_when` or `max_failures` says that the step does.
        PartitionBusyError: another run, or another consumer, owns the partition.
    """
    with opened_step(context, spec, config) as (client, attempt, limits):
        if isinstance(spec, TopicDrainSpec):
            if partition is None:
                partition = int(context.partition_key)
            topic = _topic_of(context, client, spec, partition)
            consumer = _partition_consumer(context, topic, spec, config, attempt, partition)
            drain_it = partial(drain_partition, topic, partition, spec.group, config=consumer, limits=limits)
        else:
            queue = queue_of(client, spec, attempt)
            earlier = _earlier_attempts(context, attempt, queue.consumer_names())
            drain_it = partial(drain, queue, limits=limits, take_over_from=earlier, payload=spec.payload)
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
    context: Context,
    client: Client,
    spec: AnySpec,
    config: LimitsConfig,
    drain_it: Drain,
    reason_of: Callable[[DrainReport], str | None] | None = None,
) -> tuple[DrainReport, Metadata]:
    """Run the drain with the spec's handler.

    Args:
        reason_of: why the step fails, in words, or `None` if it does not; `fail_when` unless given.

    Raises:
        dagster.Failure: messages failed, and the rule says that the step does, or a server was unavailable;
            its metadata has the counts.
    """
    timeline = Timeline()
    handler = timeline.counting(bound_handler(spec.load_handler(), context))
    engine = spec.resources.database_of(context).get_engine()
    try:
        # What is logged to stderr is kept by Dagster too.
        with nullcontext() if config.log_errors else hiding_error_texts():
            report, outage = drain_it(handler=handler, engine=engine, inbox=spec.inbox), None
    except DrainError as error:
        report, outage = error.report, None
    except Exception as error:
        # Its report has what was done before a server was unavailable; what has none failed in another way.
        found: DrainReport | None = getattr(error, "drain_report", None)
        if found is None:
            raise
        report = found
        outage = outage_in_words(error, with_text=config.log_errors)
    # Outside of the handling of the error, whose text may quote a message.
    metadata = drain_metadata(report, _backlog_after(client, report), timeline) | page_link(spec.source)
    log_failures(context, report.failures, with_texts=config.log_errors)
    if outage is not None:
        raise OutageFailure(sentence_of(report, f"the drain was ended by {outage}"), metadata=metadata)
    # A step that is stopped is canceled, whatever failed before.
    if report.stopped_by == "stop":
        return report, metadata
    reason = reason_of(report) if reason_of else reason_to_fail(report, spec.fail_when or config.fail_when)
    if reason:
        # To do the same again at once helps if servers are unavailable, and not if messages are bad.
        may_help = report.stopped_by in ("max_failures", *TOO_SOON)
        raise dg.Failure(sentence_of(report, reason), metadata=metadata, allow_retries=may_help)
    return report, metadata


def _backlog_after(client: Client, report: DrainReport) -> BacklogStats | None:
    try:
        return peek_backlog(client, stream=report.stream, group=report.group)
    except ConquietError:
        # The outage is not over; the counts of what was done need no server.
        if report.stopped_by == "error":
            return None
        raise


def _topic_of(context: Context, client: Client, spec: TopicDrainSpec, partition: int) -> Topic:
    topic = Topics(client).open(spec.topic)
    if spec.partitions is not None and topic.partition_count > spec.partitions:
        context.log.warning(
            "topic %r has %d partitions, the definitions %d: nothing drains the others; without "
            "`partitions`, the spec follows the topic",
            *(spec.topic, topic.partition_count, spec.partitions),
        )
    if partition not in topic.partitions:
        raise PartitionMissingError(spec.topic, partition=partition, count=topic.partition_count)
    return topic


def _partition_consumer(
    context: Context,
    topic: Topic,
    spec: TopicDrainSpec,
    config: TopicDrainConfig,
    attempt: Attempt,
    partition: int,
) -> ConsumerConfig:
    owner = MqAdmin(topic.client).owners(spec.topic, spec.group).partitions[partition].owner
    return ConsumerConfig(
        consumer_name=attempt.consumer_name,
        retry=RetryPolicy(max_attempts=config.max_attempts, base_delay_ms=config.retry_delay_ms),
        take_over_from=_earlier_attempts(context, attempt, [owner] if owner else []),
        payload=spec.payload,
    )


def read_again_in_step(
    context: Context, spec: DrainSpec, config: LimitsConfig, retained: Retained
) -> tuple[Metadata, Mapping[str, Mapping[str, int]]]:
    """Handle what the stream still has of a window or of some keys, whether the group has handled it or not.

    An attempt at the same materialisation skips, by the inbox, what earlier ones have committed. Returns the
    metadata of all, and what became of the messages of each partition.

    Raises:
        dagster.Failure: a message failed, or a limit ended it before the last message.
    """
    with opened_step(context, spec, config) as (client, attempt, limits):
        channel = RetainedChannel(client, spec.stream, f"{spec.group}@{attempt.work_id}", retained)

        def read_again(handler: Handler, engine: Engine, inbox: Inbox | None) -> DrainReport:
            payload_type = PayloadType.of(spec.payload, None)
            with new_handling(handler, engine, inbox, payload=payload_type) as handling:
                return DrainLoop[QueueMessage](channel, handling, limits).run()

        _, metadata = run_drain(context, client, spec, config, read_again, reason_partition_fails)
        return metadata, channel.outcomes


def _earlier_attempts(context: Context, attempt: Attempt, names: list[str]) -> tuple[str, ...]:
    earlier = attempt.earlier_names(names)
    if earlier:
        context.log.info("takes over from %d earlier attempts: %s", len(earlier), ", ".join(earlier))
    return tuple(earlier)
