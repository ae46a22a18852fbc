"""The partitions that one consumer owns: a worker in its own thread and a lease that is renewed for each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conquiet.consume.engine import DrainLoop
from conquiet.errors import QueueError
from conquiet.logs import MessageLog, message_fields
from conquiet.mq.envelope import MqMessage
from conquiet.mq.metrics import emit, gauge_part
from conquiet.mq.own.channel import PartitionChannel
from conquiet.mq.own.channel_leases import ChannelLeases
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.servers import for_each_partition
from conquiet.mq.topics import Topic

if TYPE_CHECKING:
    from conquiet.consume.async_handling import AsyncHandling
    from conquiet.consume.handling import MessageHandling

_log = MessageLog(logging.getLogger(__name__))


@dataclass(slots=True)
class Owned:
    """One partition, from its lease to the end of its thread."""

    channel: PartitionChannel
    loop: DrainLoop[MqMessage]
    thread: threading.Thread = field(init=False)
    error: BaseException | None = None
    #: Entry ids of messages whose handler runs for too long.
    logged_overdue: set[str] = field(default_factory=set)

    @property
    def partition(self) -> int:
        """Its number."""
        return self.channel.partition.partition

    def stop(self) -> None:
        """End its thread after the message in its handler; safe in a signal handler."""
        self.loop.stop()
        self.channel.waiting.wake()


class OwnedPartitions:
    """Starts a thread for each partition, renews the leases, and finds what has ended; used by `run()`."""

    def __init__(self, topic: str, group: str, leases: ChannelLeases, config: ConsumerConfig) -> None:
        self._leases = leases
        self._config = config
        self._owned: dict[int, Owned] = {}
        self._owned_gauge = gauge_part("conquiet_mq_partitions_owned", topic, group)
        self._overdue_gauge = gauge_part("conquiet_mq_handlers_overdue", topic, group)

    def __len__(self) -> int:
        return len(self._owned)

    def __contains__(self, partition: int) -> bool:
        return partition in self._owned

    def __iter__(self) -> Iterator[Owned]:
        """What is owned now; other threads may ask too."""
        return iter(list(self._owned.values()))

    def __getitem__(self, partition: int) -> Owned:
        return self._owned[partition]

    @property
    def numbers(self) -> list[int]:
        """The partitions, in order."""
        return sorted(self._owned)

    @property
    def in_flight(self) -> int:
        """Messages that were read and are not settled."""
        return sum(len(owned.channel.in_flight) for owned in self)

    def start(self, owned: Owned, handling: MessageHandling | AsyncHandling) -> None:
        """Begin to work on a partition that has just been acquired."""
        owned.thread = threading.Thread(
            target=self._work, args=(owned, handling), name=f"conquiet-{owned.channel}", daemon=True
        )
        self._owned[owned.partition] = owned
        owned.thread.start()

    def stop(self) -> None:
        """End each thread after the message in its handler; safe in a signal handler."""
        for owned in self:
            owned.stop()

    def renew(self, topic: Topic) -> None:
        """Renew every lease, and keep what was read in its partition from becoming stale.

        Raises:
            QueueError: the first failure, after the leases of all others were renewed.
        """
        channels = {number: self._owned[number].channel for number in self.numbers}
        for_each_partition(topic, channels, lambda number: self._leases.renew(channels[number]))

    def take_ended(self) -> list[Owned]:
        """What has ended since the last call; it is owned no longer."""
        ended = [owned for owned in self if not owned.thread.is_alive()]
        for owned in ended:
            del self._owned[owned.partition]
            emit("conquiet_mq_in_flight", 0, *owned.channel.partition.labels)
        return ended

    def wait_for_one(self, timeout_s: float) -> None:
        """Wait for the end of a thread."""
        for owned in self:
            owned.thread.join(timeout=timeout_s)
            return

    def report(self) -> None:
        """Set the gauges of owned partitions, and of handlers that run for too long."""
        self._owned_gauge.set(len(self._owned))
        limit_s, count = self._config.handler_timeout_s, 0
        if limit_s is None:
            return
        now = time.monotonic()
        for owned in self:
            overdue = [msg for msg, since in owned.loop.in_handlers() if now - since > limit_s]
            for msg in overdue:
                # Once.
                if msg.id not in owned.logged_overdue:
                    facts = (msg.id, limit_s, owned.channel)
                    extra = message_fields(msg, consumer=self._config.consumer_name)
                    _log.warning("the handler of entry %s runs longer than %s s on %s", *facts, extra=extra)
            owned.logged_overdue = {msg.id for msg in overdue}
            count += len(overdue)
        self._overdue_gauge.set(count)

    def _work(self, owned: Owned, handling: MessageHandling | AsyncHandling) -> None:
        try:
            try:
                owned.loop.run()
            finally:
                handling.close()
        except BaseException as error:  # noqa: BLE001 -- read and logged by the thread of run()
            owned.error = error
        owned.channel.room.leave()
        if not isinstance(owned.error, QueueError):
            self._leases.release(owned.channel)
