"""The partitions that one consumer owns: a worker in its own thread and a lease that is renewed for each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from conquiet.errors import QueueError
from conquiet.logs import MessageLog, message_fields
from conquiet.mq.clock import lease_clock
from conquiet.mq.metrics import GaugePart, count_acquired, emit
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.own.running import MessageRun
from conquiet.mq.own.worker import PartitionWorker
from conquiet.mq.servers import for_each_partition
from conquiet.mq.topics import Topic

_log = MessageLog(logging.getLogger(__name__))


@dataclass(slots=True)
class Owned:
    """One partition, from its lease to the end of its worker."""

    worker: PartitionWorker
    thread: threading.Thread = field(init=False)
    error: BaseException | None = None
    has_told_overdue: bool = False

    @property
    def partition(self) -> int:
        """Its number."""
        return self.worker.partition.partition


class OwnedPartitions:
    """Starts workers, keeps their leases, and tells which have ended; used by the thread of `run()`."""

    def __init__(self, topic: str, group: str, leases: LeaseStore, config: ConsumerConfig) -> None:
        self._leases = leases
        self._config = config
        self._owned: dict[int, Owned] = {}
        self._owned_gauge = GaugePart("conquiet_mq_partitions_owned", topic, group)
        self._overdue_gauge = GaugePart("conquiet_mq_handlers_overdue", topic, group)

    def __len__(self) -> int:
        return len(self._owned)

    def __contains__(self, partition: int) -> bool:
        return partition in self._owned

    def __iter__(self) -> Iterator[Owned]:
        """Whatever is owned at the moment; other threads may ask too."""
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
        return sum(len(owned.worker.settling.in_flight) for owned in self)

    def start(self, worker: PartitionWorker, run: MessageRun) -> None:
        """Let a worker begin whose partition has just been acquired."""
        owned = Owned(worker)
        owned.thread = threading.Thread(
            target=self._work, args=(owned, run), name=f"conquiet-{worker}", daemon=True
        )
        self._owned[owned.partition] = owned
        count_acquired(*worker.partition.labels)
        owned.thread.start()

    def stop(self) -> None:
        """Let all workers end after the message at hand; safe in a signal handler."""
        for owned in self:
            owned.worker.stop()

    def renew(self, topic: Topic) -> None:
        """Renew every lease, and keep what its worker has read alive.

        Raises:
            QueueError: the first failure, after the leases of all others were renewed.
        """
        for_each_partition(topic, self.numbers, self._renew)

    def take_ended(self) -> list[Owned]:
        """Those whose workers have ended since the last call; they are owned no longer."""
        ended = [owned for owned in self if not owned.thread.is_alive()]
        for owned in ended:
            del self._owned[owned.partition]
            emit("conquiet_mq_in_flight", 0, *owned.worker.partition.labels)
        return ended

    def wait_for_one(self, timeout_s: float) -> None:
        """Wait for the end of a worker."""
        for owned in self:
            owned.thread.join(timeout=timeout_s)
            return

    def tell(self) -> None:
        """Say how many are owned, and whose handlers run for too long."""
        self._owned_gauge.set(len(self._owned))
        limit = self._config.handler_timeout_s
        if limit is not None:
            self._overdue_gauge.set(sum(self._is_overdue(owned, limit) for owned in self))

    def _renew(self, partition: int) -> None:
        owned = self._owned[partition]
        asked = lease_clock()
        in_flight = owned.worker.settling.in_flight.copy().items()
        is_kept = self._leases.renew(owned.worker.partition.lease, self._config.lease_ttl_ms, in_flight)
        owned.worker.lease_is_certain_until = self._config.certain_until(asked) if is_kept else 0.0

    def _is_overdue(self, owned: Owned, limit_s: float) -> bool:
        running = owned.worker.attempts.running
        if running is None or time.monotonic() - running.since <= limit_s:
            owned.has_told_overdue = False
            return False
        if not owned.has_told_overdue:
            facts = (running.msg.id, limit_s, owned.worker)
            told = message_fields(
                running.msg, context=running.msg.context, consumer=self._config.consumer_name
            )
            _log.warning("the handler of entry %s runs longer than %s s on %s", *facts, extra=told)
            owned.has_told_overdue = True
        return True

    def _work(self, owned: Owned, run: MessageRun) -> None:
        try:
            with run:
                owned.worker.work()
            self._leases.release(owned.worker.partition.lease)
        except BaseException as error:  # noqa: BLE001 -- looked at and told in the thread of run()
            owned.error = error
            if not isinstance(error, QueueError):
                # Also one that was lost by our own clock alone; the server refuses if it is another's.
                self._release(owned)

    def _release(self, owned: Owned) -> None:
        try:
            self._leases.release(owned.worker.partition.lease)
        except QueueError as error:
            told = owned.worker.partition.extra()
            _log.warning("the lease on %s stays until its time is over: %s", owned.worker, error, extra=told)
