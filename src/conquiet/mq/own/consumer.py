"""PartitionConsumer: owns its fair share of a topic's partitions for a group, one serial worker each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine

from conquiet.db import Inbox
from conquiet.errors import LeaseLostError, QueueError, TopicError
from conquiet.logs import MessageLog, message_fields
from conquiet.mq.clock import lease_clock
from conquiet.mq.keys import check_topic_part
from conquiet.mq.look.retention import Trimmer
from conquiet.mq.metrics import emit
from conquiet.mq.own.assignment import plan
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.own.outage import Outage
from conquiet.mq.own.owned import OwnedPartitions
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.own.running import MessageRun, MqHandler, check_mq_handler
from conquiet.mq.own.worker import PartitionWorker
from conquiet.mq.send.delayed import move_delayed
from conquiet.mq.servers import for_each_partition
from conquiet.mq.topics import Topic, Topics

_log = MessageLog(logging.getLogger(__name__))


class PartitionConsumer:
    """One member of a consumer group; `run()` works until `stop()`, once, and raises what it cannot mend.

    Messages of a partition are handled one after the other. With an engine the handler is called with a
    `DbSession`, and the message is settled after its commit.
    """

    def __init__(
        self,
        topic: Topic,
        group: str,
        handler: MqHandler,
        engine: Engine | None = None,
        *,
        inbox: Inbox | None = None,
        config: ConsumerConfig | None = None,
    ) -> None:
        check_topic_part("group", group)
        check_mq_handler(handler, has_engine=engine is not None)
        if inbox is not None and engine is None:
            raise ValueError("inbox needs an engine")
        self.topic = topic
        self.group = group
        self.config = config or ConsumerConfig()
        self._handler = handler
        self._engine = engine
        self._inbox = inbox
        self._leases = LeaseStore(topic, group)
        self._rules = self.config.settlement_rules()
        self._owned = OwnedPartitions(topic.name, group, self._leases, self.config)
        self._trimmer = Trimmer()
        self._gate = threading.Event()
        self._gate.set()
        self._is_stopping = False
        self._has_run = threading.Lock()
        #: Redis as a whole, and partitions whose workers fail although it is there.
        self._away = Outage(self.config.max_outage_s)
        self._failing: dict[int, Outage] = {}
        #: What ended a worker and cannot be mended; `run` raises it.
        self._fatal: BaseException | None = None
        if inbox is not None and engine is not None:
            inbox.create_table(engine)

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
        return not self._gate.is_set()

    def pause(self) -> None:
        """Begin no further message; partitions stay owned."""
        self._gate.clear()

    def resume(self) -> None:
        """Go on after `pause()`."""
        self._gate.set()

    def stop(self) -> None:
        """Finish the messages at hand, hand back the rest, release the partitions; callable from anywhere."""
        self._is_stopping = True
        # At once: until the loop looks again, workers would begin further messages.
        self._owned.stop()

    def run(self) -> None:
        """Work until stopped.

        Raises:
            QueueError: Redis was away, or refused the work on a partition, for longer than `max_outage_s`.
            DatabaseUnavailableError: no connection to the database could be had for that time.
            TopicError: the topic was deleted.
            RuntimeError: it runs already, or has run; each run needs a consumer of its own.
        """
        if not self._has_run.acquire(blocking=False):
            raise RuntimeError(
                f"consumer {self.config.consumer_name!r} of topic {self.topic.name!r} runs or has run: "
                "make a new PartitionConsumer for each run"
            )
        try:
            while not self._is_stopping and self._fatal is None:
                self._tick()
                self._sleep()
        finally:
            self._shut_down()
        if self._fatal is not None:
            raise self._fatal

    def _sleep(self) -> None:
        # Short steps instead of an event: stop() may come from a signal handler, where locks are not safe.
        until = time.monotonic() + self.config.tick_s
        while not self._is_stopping and time.monotonic() < until:
            time.sleep(min(0.05, self.config.tick_s))

    def _tick(self) -> None:
        self._reap()
        if self._fatal is not None:
            # Else the partition that has just been released would be acquired, and begun, once more.
            return
        try:
            self._owned.renew(self.topic)
            self._rebalance()
            move_delayed(self.topic)
            self._trimmer.trim(self.topic, self.owned)
        except QueueError as error:
            self._bear_outage(error)
        else:
            if self._away.is_on:
                self._away.ended()
                # What failed with the server is not to wait for longer than the server.
                self._failing.clear()
        self._owned.tell()

    def _bear_outage(self, error: QueueError) -> None:
        _log.warning(
            "consumer %s of topic %r cannot reach Redis: %s",
            self.config.consumer_name,
            self.topic.name,
            error,
            extra=self._extra(),
        )
        if self._away.failed():
            raise error

    def _bear_failure(self, partition: int, error: QueueError, *, has_worked: bool) -> None:
        # Several: two lost replies around a handler of hours are no outage.
        outage = Outage(self.config.max_outage_s, min_failures=5)
        failing = self._failing.setdefault(partition, outage)
        if has_worked:
            failing.ended()
        emit("conquiet_mq_worker_failures_total", 1, self.topic.name, str(partition), self.group)
        facts, told = (partition, self.topic.name, error), self._extra(partition=partition)
        _log.warning("partition %s of topic %r stopped: %s", *facts, extra=told)
        if failing.failed():
            self._fatal = self._fatal or error

    def _rebalance(self) -> None:
        members = self._leases.heartbeat(self.config.consumer_name, self.config.lease_ttl_ms)
        self._look_up_topic()
        wanted = plan(self.config.consumer_name, members, self.topic.partition_count, self.owned)
        for partition in wanted.release:
            self._owned[partition].worker.stop()
        missing = wanted.acquire

        def acquire(partition: int) -> None:
            nonlocal missing
            if missing and partition not in self._owned and self._is_time_to_try(partition):
                missing -= self._acquire(partition)

        for_each_partition(self.topic, self.topic.partitions, acquire)

    def _is_time_to_try(self, partition: int) -> bool:
        return partition not in self._failing or self._failing[partition].is_time_to_try()

    def _look_up_topic(self) -> None:
        found = Topics(self.topic.client).open(self.topic.name)
        if found.layout != self.topic.layout:
            # As a plain stream the name would be a key that has nothing to do with the topic.
            raise TopicError(self.topic.name, "was deleted, or made of a plain stream, while it was consumed")
        self.topic = found

    def _acquire(self, partition: int) -> bool:
        asked = lease_clock()
        lease = self._leases.acquire(partition, self.config.consumer_name, self.config.lease_ttl_ms)
        if lease is None:
            return False
        leased = LeasedPartition(self.topic, self.group, lease, self._leases)
        try:
            leased.create_group()
        except QueueError as error:
            # Of this partition alone, as a key of another type: the others go on.
            self._bear_failure(partition, error, has_worked=False)
            self._try(lambda: self._leases.release(lease))
            return False
        run = MessageRun(
            self._handler,
            self._rules,
            engine=self._engine,
            inbox=self._inbox,
            check_lease=lambda: worker.check_lease(),
        )
        outage = {"max_outage_s": self.config.max_outage_s}
        worker = PartitionWorker(leased, run, self._rules, self.config.worker, self._gate, **outage)
        worker.lease_is_certain_until = self.config.certain_until(asked)
        self._owned.start(worker, run)
        return True

    def _reap(self) -> None:
        for owned in self._owned.take_ended():
            match owned.error:
                case None:
                    continue
                case LeaseLostError():
                    emit("conquiet_mq_leases_lost_total", 1, *owned.worker.partition.labels)
                    told = owned.worker.partition.extra()
                    _log.warning("%s; it will be handled by its new owner", owned.error, extra=told)
                case QueueError():
                    has_worked = owned.worker.settling.has_worked
                    self._bear_failure(owned.partition, owned.error, has_worked=has_worked)
                case _:
                    told = owned.worker.partition.extra()
                    _log.error("%s ended", owned.worker, exc_info=owned.error, extra=told)
                    self._fatal = self._fatal or owned.error

    def _extra(self, **facts: Any) -> dict[str, Any]:
        place = {"topic": self.topic.name, "group": self.group, "consumer": self.config.consumer_name}
        return message_fields(**place, **facts)

    def _shut_down(self) -> None:
        self._owned.stop()
        # First, so that others take at once what is released.
        self._try(lambda: self._leases.heartbeat(self.config.consumer_name, 0))
        # Leases are renewed until the last handler has ended: nobody takes over what is about to finish.
        while len(self._owned):
            self._try(lambda: self._owned.renew(self.topic))
            self._owned.wait_for_one(self.config.tick_s)
            self._reap()
            self._owned.tell()

    def _try(self, last_call: Callable[[], object]) -> None:
        try:
            last_call()
        except QueueError as error:
            facts = (self.config.consumer_name, error)
            _log.warning("consumer %s lets go without Redis: %s", *facts, extra=self._extra())
        except BaseException as error:  # noqa: BLE001 -- raised by run(), as soon as no worker is left
            self._fatal = self._fatal or error
