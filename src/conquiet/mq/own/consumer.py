"""PartitionConsumer: owns its fair share of a topic's partitions for a group, one thread each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from conquiet.consume.engine import DrainLoop
from conquiet.consume.gate import Gate
from conquiet.consume.handler_kinds import new_handling
from conquiet.consume.handling import Handler
from conquiet.consume.outage import Outage
from conquiet.db import Inbox
from conquiet.errors import LeaseLostError, QueueError
from conquiet.logs import MessageLog, message_fields
from conquiet.mq.keys import check_topic_part
from conquiet.mq.look.retention import Trimmer
from conquiet.mq.metrics import emit
from conquiet.mq.own.background import Background
from conquiet.mq.own.channel_leases import ChannelLeases
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.failing import FailingPartitions
from conquiet.mq.own.membership import Membership
from conquiet.mq.own.owned import Owned, OwnedPartitions
from conquiet.mq.own.preparation import Preparation
from conquiet.mq.send.delayed import move_delayed
from conquiet.mq.servers import for_each_partition
from conquiet.mq.topics import Topic, Topics, name_of, topic_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_log = MessageLog(logging.getLogger(__name__))


class PartitionConsumer(Background):
    """One member of a consumer group; `run()` works until `stop()`, once, and raises what is final.

    A `with` block, or `start()`, runs it in a thread. Messages of a partition are handled one by one; with an
    engine the handler gets a `DbSession`, and the message is settled after its commit. Else as in `drain`.

    Examples:
        >>> from threading import Thread
        >>> consumer = PartitionConsumer(topic, "audit", ship, engine, config=ConsumerConfig(block_ms=50))
        >>> thread = Thread(target=consumer.run)  # in a program: consumer.run(), until a signal stops it
        >>> thread.start()
        >>> consumer.stop()
        >>> thread.join()
    """

    def __init__(
        self,
        topic: Topic | str,
        group: str,
        handler: Handler,
        engine: Engine | AsyncEngine | None = None,
        *,
        inbox: Inbox | bool | None = None,
        config: ConsumerConfig | None = None,
    ) -> None:
        check_topic_part("group", group)
        self.config = config = ConsumerConfig.of(config)
        self._new_handling = partial(new_handling, handler, engine, inbox, payload=config.payload_type())
        whose = {"topic": name_of(topic), "group": group, "consumer": config.consumer_name}
        # It checks its arguments; each partition's thread has one of its own.
        prepare = lambda: self._new_handling().prepare()  # noqa: E731 -- anew each time
        self._preparation = Preparation(prepare, whose, max_outage_s=config.max_outage_s)
        self.topic, self.group = topic_of(topic), group
        self._extra = partial(message_fields, **whose)
        self._leases = ChannelLeases(self.topic, group, self.config)
        self._membership = Membership(self._leases.store, group, self.config)
        self._owned = OwnedPartitions(self.topic.name, group, self._leases, self.config)
        self._trimmer = Trimmer()
        self._gate = Gate(self.config.max_handlers)
        self._is_stopping = False
        #: Acquired until `stop()`: an event is not safe in a signal handler.
        self._runs = threading.Lock()
        self._runs.acquire()
        self._has_run = threading.Lock()
        #: Redis as a whole.
        self._redis = Outage(self.config.max_outage_s)
        self._failing = FailingPartitions(**whose, max_outage_s=config.max_outage_s)
        #: What ended a partition's thread for good; `run` raises it.
        self._fatal: BaseException | None = None

    @property
    def owned(self) -> list[int]:
        """The partitions that it owns now."""
        return self._owned.numbers

    @property
    def in_flight(self) -> int:
        """Messages that were read and are not settled."""
        return self._owned.in_flight

    @property
    def is_paused(self) -> bool:
        """Whether `pause()` was called."""
        return self._gate.is_paused

    def pause(self) -> None:
        """Begin no further message; partitions stay owned."""
        self._gate.is_paused = True

    def resume(self) -> None:
        """Go on after `pause()`."""
        self._gate.is_paused = False

    def stop(self) -> None:
        """Finish what is in handlers, hand back the rest, release the partitions; callable from anywhere."""
        self._is_stopping = True
        # At once: until the loop looks again, further messages would begin.
        self._owned.stop()
        with suppress(RuntimeError):
            self._runs.release()

    def run(self) -> None:
        """Work until stopped.

        Raises:
            QueueError: Redis, or a partition on it, was unavailable for longer than `max_outage_s`.
            DatabaseUnavailableError: the database was unavailable for that time.
            TopicError: the topic was deleted.
            RuntimeError: it runs already, or has run; each run needs a consumer of its own.
        """
        if not self._has_run.acquire(blocking=False):
            raise RuntimeError(
                f"consumer {self.config.consumer_name!r} of topic {self.topic.name!r} runs or has run: "
                "make a new PartitionConsumer for each run"
            )
        try:
            while not (self._preparation.is_done or self._is_stopping):
                self._preparation.try_again()
                if not self._preparation.is_done:
                    self._runs.acquire(timeout=self.config.tick_s)
            while not self._is_stopping and self._fatal is None:
                self._tick()
                self._runs.acquire(timeout=self.config.tick_s)
        finally:
            self._shut_down()
        if self._fatal is not None:
            raise self._fatal

    def _tick(self) -> None:
        self._reap()
        if self._fatal is not None:
            # Else the partition that has just been released would be acquired, and begun, once more.
            return
        try:
            self._owned.renew(self.topic)
            self._leases.check_ends(self.topic)
            self._rebalance()
            move_delayed(self.topic)
            self._trimmer.trim(self.topic, self.owned)
        except QueueError as error:
            facts = (self.config.consumer_name, self.topic.name, error)
            _log.warning("consumer %s of topic %r cannot reach Redis: %s", *facts, extra=self._extra())
            if self._redis.failed():
                raise
        else:
            if self._redis.is_on:
                self._redis.ended()
                # What failed with the server is not to wait for longer than the server.
                self._failing.clear()
        self._owned.report()

    def _rebalance(self) -> None:
        # It may have grown. Before the heartbeat, which must leave nothing in a topic that was deleted.
        self.topic = Topics(self.topic.client).open_again(self.topic)
        wanted = self._membership.plan(self.topic, self.owned)
        for partition in wanted.release:
            self._owned[partition].stop()
        missing = wanted.acquire

        def acquire(partition: int) -> None:
            nonlocal missing
            if missing and partition not in self._owned and self._failing.is_time_to_try(partition):
                missing -= self._acquire(partition)

        for_each_partition(self.topic, self.topic.partitions, acquire)

    def _acquire(self, partition: int) -> bool:
        channel = self._leases.acquire(self.topic, partition)
        if channel is None:
            return False
        try:
            self._leases.create_group(channel)
        except QueueError as error:
            # Of this partition alone, as a key of another type: the others go on.
            self._leases.release(channel)
            if self._failing.failed(partition, error, has_worked=False):
                self._fatal = self._fatal or error
            return False
        handling = self._new_handling(before_commit=channel.check_lease)
        loop = DrainLoop(channel, handling, self.config.no_limits(), gate=self._gate)
        self._owned.start(Owned(channel, loop), handling)
        return True

    def _reap(self) -> None:
        for owned in self._owned.take_ended():
            match owned.error:
                case None:
                    continue
                case LeaseLostError():
                    emit("conquiet_mq_leases_lost_total", 1, *owned.channel.partition.labels)
                    _log.warning("%s", owned.error, extra=owned.channel.partition.extra())
                case MemoryError() | QueueError() as error:
                    if isinstance(error, MemoryError):
                        self._leases.shrink_budget(error, self._extra())
                    if self._failing.failed(owned.partition, error, has_worked=owned.channel.has_worked):
                        self._fatal = self._fatal or error
                case _:
                    text, extra = "the worker of %s failed", owned.channel.partition.extra()
                    _log.error(text, owned.channel, exc_info=owned.error, extra=extra)
                    self._fatal = self._fatal or owned.error

    def _shut_down(self) -> None:
        self._owned.stop()
        # First, so that others take at once what is released.
        self._try(self._membership.leave)
        # Leases are renewed until the last handler has ended: nobody takes over what is about to finish.
        while len(self._owned):
            self._try(lambda: self._owned.renew(self.topic))
            self._owned.wait_for_one(self.config.tick_s)
            self._reap()
            self._owned.report()

    def _try(self, last_call: Callable[[], object]) -> None:
        try:
            last_call()
        except QueueError as error:
            _log.warning("Redis could not be reached while it stopped: %s", error, extra=self._extra())
        except BaseException as error:  # noqa: BLE001 -- raised by run(), as soon as no thread is left
            self._fatal = self._fatal or error
