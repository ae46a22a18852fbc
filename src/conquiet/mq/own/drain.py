"""drain_partition: own one partition, settle what is there up to the limits, release it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from conquiet.consume.engine import DrainLoop
from conquiet.consume.handler_kinds import new_handling
from conquiet.consume.handling import Handler
from conquiet.consume.limits import DrainLimits, check_limits
from conquiet.consume.report import DrainReport
from conquiet.db import Inbox
from conquiet.errors import ConquietError, PartitionBusyError
from conquiet.logs import MessageLog
from conquiet.masking import shown
from conquiet.mq.envelope import MqMessage
from conquiet.mq.keys import check_topic_part
from conquiet.mq.own.channel import PartitionChannel
from conquiet.mq.own.channel_leases import ChannelLeases
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.send.delayed import move_delayed
from conquiet.mq.topics import Topic, topic_of
from conquiet.queue import RedisStreamsQueue

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_log = MessageLog(logging.getLogger(__name__))


def drain_partition(
    topic: Topic | str,
    partition: int,
    group: str,
    handler: Handler,
    engine: Engine | AsyncEngine | None = None,
    limits: DrainLimits | None = None,
    *,
    inbox: Inbox | bool | None = None,
    config: ConsumerConfig | None = None,
) -> DrainReport:
    """Own the partition until a limit is reached, and handle its messages as `PartitionConsumer` does.

    First what earlier owners left, then due retries, then new messages; handlers run in the calling thread.
    The handler is as in `drain`; a failed message is retried, or a dead letter, by `config.retry`.

    Args:
        topic: or its name, on the server of the settings.

    Raises:
        PartitionBusyError: another consumer owns the partition.
        LeaseLostError: the lease was lost meanwhile; what was not settled is handled again by its new owner.

    Examples:
        >>> report = drain_partition(topic, 0, "couriers", ship, engine, DrainLimits(idle_ms=50))
        >>> report.partition
        0
    """
    topic = topic_to_drain(topic)
    drains = PartitionDrains(topic, group, handler, engine, inbox=inbox, config=ConsumerConfig.of(config))
    topic.check_partition(partition)
    limits = drains.checked(limits)
    drains.prepare()
    with drains.loop_over(topic, partition, limits) as loop:
        return loop.run()


class PartitionDrains:
    """Drains partitions of one topic for one group, one after the other or several at once.

    All of them share `ConsumerConfig.max_bytes`, and what is known of the ends of streams.
    """

    def __init__(
        self,
        topic: Topic,
        group: str,
        handler: Handler,
        engine: Engine | AsyncEngine | None,
        *,
        inbox: Inbox | bool | None,
        config: ConsumerConfig,
    ) -> None:
        check_topic_part("group", group)
        self._group, self._config = group, config
        self._new_handling = partial(new_handling, handler, engine, inbox, payload=config.payload_type())
        self._leases = ChannelLeases(topic, group, config)

    def checked(self, limits: DrainLimits | None) -> DrainLimits:
        """The limits that were given, or those of the config."""
        limits = self._config.drain_limits() if limits is None else limits
        check_limits(limits)
        self._config.check_order(limits.order_by)
        if limits.max_deliveries is not None:
            raise ValueError(
                "max_deliveries is for plain streams; a topic has ConsumerConfig.retry.max_attempts"
            )
        return limits

    def prepare(self) -> None:
        """Check the handler and the database, before anything is acquired."""
        self._new_handling().prepare()

    def check_ends(self, topic: Topic) -> None:
        """Report what a failover has lost of the partitions that were drained; once a second at the most."""
        self._leases.check_ends(topic)

    @contextmanager
    def loop_over(self, topic: Topic, partition: int, limits: DrainLimits) -> Iterator[DrainLoop[MqMessage]]:
        """The loop that drains a partition, which is owned until the end of the `with` block."""
        # Longer than later on: there is no lease yet that has to be renewed.
        move_delayed(topic, budget_s=5.0)
        leases = self._leases
        channel = leases.acquire(topic, partition)
        if channel is None:
            raise PartitionBusyError(topic.name, partition=partition, group=self._group)
        handling = self._new_handling(before_commit=channel.check_lease)
        try:
            leases.create_group(channel)
            with _Renewal(channel, leases, self._config.tick_s), handling:
                yield DrainLoop(channel, handling, limits)
        finally:
            channel.room.leave()
            leases.release(channel)


def topic_to_drain(topic: Topic | str) -> Topic:
    """As `topic_of`; a plain stream has another drain."""
    if isinstance(topic, RedisStreamsQueue):
        raise TypeError(
            f"topic must be a Topic or the name of one, got {shown(topic)}; a RedisStreamsQueue is drained "
            "by drain"
        )
    return topic_of(topic)


class _Renewal:
    """Renews the lease of one drain in a thread of its own, for as long as the `with` block lasts."""

    def __init__(self, channel: PartitionChannel, leases: ChannelLeases, every_s: float) -> None:
        self._channel = channel
        self._leases = leases
        self._every_s = every_s
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"conquiet-drain-{channel}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _run(self) -> None:
        channel = self._channel
        while not self._has_ended.wait(self._every_s):
            try:
                self._leases.renew(channel)
                self._leases.check_ends(channel.partition.topic)
                move_delayed(channel.partition.topic)
            except ConquietError as error:
                # The drain ends by itself when the lease is no longer certain.
                extra = channel.partition.extra()
                _log.warning("the lease on %s could not be renewed: %s", channel, error, extra=extra)
