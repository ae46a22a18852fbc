"""ChannelLeases: a partition becomes a channel when its lease is acquired, until the lease is released."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from conquiet.consume.byte_budget import ByteBudget
from conquiet.errors import QueueError
from conquiet.logs import MessageLog
from conquiet.mq.clock import lease_clock
from conquiet.mq.look.group_changes import create_group
from conquiet.mq.metrics import count_acquired
from conquiet.mq.own.channel import PartitionChannel
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.servers import for_each_partition
from conquiet.mq.topics import Topic
from conquiet.queue.ends import EndWatch

_log = MessageLog(logging.getLogger(__name__))


class ChannelLeases:
    """Acquires, renews and releases the partitions of one consumer of one group."""

    def __init__(self, topic: Topic, group: str, config: ConsumerConfig) -> None:
        self._group = group
        self._config = config
        self.store = LeaseStore(topic, group)
        self._ends = EndWatch(topic.client, config.consumer_name)
        #: Of all partitions of the consumer together.
        self._budget = ByteBudget(config.max_bytes)
        self._ever_owned: set[int] = set()

    def acquire(self, topic: Topic, partition: int) -> PartitionChannel | None:
        """The partition; `None` if another consumer has it."""
        config, asked = self._config, lease_clock()
        lease = self.store.acquire(
            partition, config.consumer_name, config.lease_ttl_ms, replaces=config.take_over_from
        )
        if lease is None:
            return None
        leased = LeasedPartition(topic, self._group, lease, self.store)
        channel = PartitionChannel(leased, config, self._ends, self._budget)
        self._ends.watch(leased.stream, topic.end_mark(partition))
        self._ever_owned.add(partition)
        channel.lease_valid_until = config.valid_until(asked)
        count_acquired(*leased.labels)
        _log.info("acquired %s, epoch %s", leased, lease.epoch, extra=leased.extra())
        return channel

    def create_group(self, channel: PartitionChannel) -> None:
        """Create the group, unless it is there: where the config says, or at the partition's beginning."""
        partition, at = channel.partition, self._config.group_start
        if at != "start":
            create_group(partition.topic, partition.group, at)
        partition.create_group()

    def renew(self, channel: PartitionChannel) -> None:
        """Renew the lease, and keep what was read from becoming stale."""
        asked = lease_clock()
        in_flight = channel.in_flight.copy().items()
        is_renewed = self.store.renew(channel.partition.lease, self._config.lease_ttl_ms, in_flight)
        channel.lease_valid_until = self._config.valid_until(asked) if is_renewed else 0.0

    def shrink_budget(self, error: MemoryError, extra: Mapping[str, Any]) -> None:
        """The process had too little memory: all partitions have less from now on."""
        text = "too little memory for what was read: no more than %d bytes at a time from now on"
        _log.error(text, self._budget.shrink(), exc_info=error, extra=extra)
        # What the failed worker had is to be free before the others go on.
        error.__traceback__ = None

    def check_ends(self, topic: Topic) -> None:
        """Report what a failover has lost, also of partitions that were owned before."""

        def check(partition: int) -> None:
            self._ends.check_if_due(topic.keys.stream(partition), topic.end_mark(partition))

        # Their owner after a failover may be a new one, which knows nothing of what was before.
        for_each_partition(topic, tuple(self._ever_owned), check)

    def release(self, channel: PartitionChannel) -> None:
        """Release the lease, or log why it stays until it expires."""
        # A handler that still runs, as after a second Ctrl-C, commits nothing: the next owner handles that.
        channel.lease_valid_until = 0.0
        try:
            # Also one that was lost by our own clock alone; the server refuses if it is another's.
            self.store.release(channel.partition.lease)
            _log.info("released %s", channel, extra=channel.partition.extra())
        except QueueError as error:
            extra = channel.partition.extra()
            _log.warning(
                "the lease on %s could not be released and expires by itself: %s", channel, error, extra=extra
            )
