"""PartitionConsumer: owns its fair share of a topic's partitions for a group, one serial worker each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Engine

from conquiet.db import Inbox
from conquiet.errors import LeaseLostError, QueueError, TopicError
from conquiet.mq.assignment import plan
from conquiet.mq.consumer_config import ConsumerConfig
from conquiet.mq.keys import check_topic_part
from conquiet.mq.leases import Lease, LeaseStore
from conquiet.mq.metrics import emit
from conquiet.mq.partition import LeasedPartition
from conquiet.mq.running import MessageRun, MqHandler, check_mq_handler
from conquiet.mq.settlement import SettlementRules
from conquiet.mq.topics import Topic, Topics
from conquiet.mq.worker import PartitionWorker

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Owned:
    worker: PartitionWorker
    lease: Lease
    thread: threading.Thread
    error: BaseException | None = None
    has_told_overdue: bool = False


class PartitionConsumer:
    """One member of a consumer group; `run()` works until `stop()`, and raises what it cannot mend.

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
        self._rules = SettlementRules(
            policy=self.config.retry, mode=self.config.retry_mode, consumer=self.config.consumer_name
        )
        self._owned: dict[int, _Owned] = {}
        self._gate = threading.Event()
        self._gate.set()
        self._is_stopping = False
        self._away_since: float | None = None
        #: What ended a worker and cannot be mended; `run` raises it.
        self._fatal: BaseException | None = None
        if inbox is not None and engine is not None:
            inbox.create_table(engine)

    @property
    def owned(self) -> list[int]:
        """The partitions that it owns now."""
        return sorted(self._owned)

    @property
    def in_flight(self) -> int:
        """Messages that were read and are not settled."""
        return sum(len(owned.worker.in_flight) for owned in list(self._owned.values()))

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
        for owned in list(self._owned.values()):
            owned.worker.stop()

    def run(self) -> None:
        """Work until stopped.

        Raises:
            QueueError: Redis was away for longer than `max_outage_s`.
            TopicError: the topic was deleted.
        """
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
        try:
            self._renew()
            self._rebalance()
            self._move_delayed()
        except QueueError as error:
            self._bear_outage(error)
        else:
            self._away_since = None
        self._tell_overdue()
        emit("conquiet_mq_partitions_owned", len(self._owned), self.topic.name, self.group)

    def _bear_outage(self, error: QueueError) -> None:
        now = time.monotonic()
        self._away_since = self._away_since or now
        _log.warning(
            "consumer %s of topic %r cannot reach Redis: %s",
            self.config.consumer_name,
            self.topic.name,
            error,
        )
        if now - self._away_since > self.config.max_outage_s:
            raise error

    def _renew(self) -> None:
        for owned in list(self._owned.values()):
            asked = time.monotonic()
            if self._leases.renew(
                owned.lease, self.config.lease_ttl_ms, owned.worker.in_flight.copy().items()
            ):
                owned.worker.lease_is_certain_until = self._certain_until(asked)
            else:
                owned.worker.lease_is_certain_until = 0.0

    def _rebalance(self) -> None:
        members = self._leases.heartbeat(self.config.consumer_name, self.config.lease_ttl_ms)
        self._look_up_topic()
        wanted = plan(self.config.consumer_name, members, self.topic.partition_count, self.owned)
        for partition in wanted.release:
            self._owned[partition].worker.stop()
        missing = wanted.acquire
        for partition in self.topic.partitions:
            if missing and partition not in self._owned and self._acquire(partition):
                missing -= 1

    def _look_up_topic(self) -> None:
        found = Topics(self.topic.client).open(self.topic.name)
        if found.layout != self.topic.layout:
            # As a plain stream the name would be a key that has nothing to do with the topic.
            raise TopicError(self.topic.name, "was deleted, or made of a plain stream, while it was consumed")
        self.topic = found

    def _acquire(self, partition: int) -> bool:
        asked = time.monotonic()
        lease = self._leases.acquire(partition, self.config.consumer_name, self.config.lease_ttl_ms)
        if lease is None:
            return False
        leased = LeasedPartition(self.topic, self.group, lease, self._leases)
        leased.create_group()
        run = MessageRun(
            self._handler,
            self._rules,
            engine=self._engine,
            inbox=self._inbox,
            check_lease=lambda: self._check_certain(worker),
        )
        worker = PartitionWorker(leased, run, self._rules, self.config.worker, self._gate)
        worker.lease_is_certain_until = self._certain_until(asked)
        thread = threading.Thread(
            target=self._work, args=(partition, run), name=f"conquiet-{worker}", daemon=True
        )
        self._owned[partition] = _Owned(worker, lease, thread)
        emit("conquiet_mq_leases_acquired_total", 1, self.topic.name, str(partition), self.group)
        thread.start()
        return True

    def _work(self, partition: int, run: MessageRun) -> None:
        owned = self._owned[partition]
        try:
            with run:
                owned.worker.work()
            self._leases.release(owned.lease)
        except BaseException as error:  # noqa: BLE001 -- looked at and told by _reap, in the thread of run()
            owned.error = error

    def _reap(self) -> None:
        for partition, owned in list(self._owned.items()):
            if owned.thread.is_alive():
                continue
            del self._owned[partition]
            emit("conquiet_mq_in_flight", 0, self.topic.name, str(partition), self.group)
            match owned.error:
                case None:
                    continue
                case LeaseLostError():
                    emit("conquiet_mq_leases_lost_total", 1, self.topic.name, str(partition), self.group)
                    _log.warning("%s; it will be handled by its new owner", owned.error)
                case QueueError():
                    _log.warning("%s stopped: %s", owned.worker, owned.error)
                case _:
                    _log.error("%s ended", owned.worker, exc_info=owned.error)
                    self._fatal = self._fatal or owned.error

    def _move_delayed(self) -> None:
        keys = self.topic.keys
        buckets: dict[str, list[int]] = {}
        for partition in self.topic.partitions:
            buckets.setdefault(keys.delayed(partition), []).append(partition)
        for delayed, partitions in buckets.items():
            streams = [keys.stream(partition) for partition in partitions]
            all_keys = [delayed, keys.delayed_items(partitions[0]), *streams]
            while self.topic.run("move_due", all_keys, "", 100, *partitions) == 100:
                continue

    def _tell_overdue(self) -> None:
        limit = self.config.handler_timeout_s
        if limit is None:
            return
        overdue = 0
        for owned in self._owned.values():
            running = owned.worker.running
            if running is None or time.monotonic() - running.since <= limit:
                owned.has_told_overdue = False
                continue
            overdue += 1
            if not owned.has_told_overdue:
                _log.warning(
                    "the handler of entry %s runs longer than %s s on %s", running.msg.id, limit, owned.worker
                )
                owned.has_told_overdue = True
        emit("conquiet_mq_handlers_overdue", overdue, self.topic.name, self.group)

    def _shut_down(self) -> None:
        for owned in self._owned.values():
            owned.worker.stop()
        # First, so that others take at once what is released.
        self._try(lambda: self._leases.heartbeat(self.config.consumer_name, 0))
        # Leases are renewed until the last handler has ended: nobody takes over what is about to finish.
        while self._owned:
            self._try(self._renew)
            next(iter(self._owned.values())).thread.join(timeout=self.config.tick_s)
            self._tell_overdue()
            self._reap()
        emit("conquiet_mq_partitions_owned", 0, self.topic.name, self.group)

    def _try(self, last_call: Callable[[], object]) -> None:
        try:
            last_call()
        except QueueError as error:
            _log.warning("consumer %s ends without Redis: %s", self.config.consumer_name, error)

    def _certain_until(self, asked: float) -> float:
        # From the moment before the request, and a tenth less: clocks run at slightly different speeds.
        return asked + self.config.lease_ttl_ms / 1000 * 0.9

    def _check_certain(self, worker: PartitionWorker) -> None:
        if not worker.is_certain():
            raise worker.partition.lost()
