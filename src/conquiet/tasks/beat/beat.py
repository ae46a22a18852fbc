"""Beat: enqueues what is due; any number may run, and one of them leads."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from conquiet.errors import QueueError, text_of
from conquiet.tasks.app import TaskApp
from conquiet.tasks.beat import metrics
from conquiet.tasks.beat.claims import Claims
from conquiet.tasks.beat.config import BeatConfig
from conquiet.tasks.beat.deliveries import Delivered, Deliveries, open_delivery_client
from conquiet.tasks.beat.queue_registry import QueueRegistry
from conquiet.tasks.schedules.store import Tick

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TickReport:
    """What one tick did."""

    is_leading: bool
    claimed: int = 0
    skipped: int = 0
    delivered: int = 0
    errors: int = 0
    #: How long there is nothing to do; 0: there may be more at once.
    wait_ms: int = 0


class Beat:
    """Claims due occurrences and enqueues them; lives from `start` to `stop`, or for single ticks.

    Of all beats of an app's namespace one leads, by a lease with an epoch. What an earlier leader still sends
    is refused, so that no occurrence is enqueued twice; what it has left the next one does, so that none is
    missed.

    Examples:
        >>> with Beat(app) as beat:  # in production: conquiet beat shop:app
        ...     beat.is_running
        True
    """

    def __init__(self, app: TaskApp, config: BeatConfig | None = None) -> None:
        self._app = app
        self.config = config or BeatConfig()
        self._store = app.schedules.store
        client = open_delivery_client(app, self.config)
        self._deliveries = Deliveries(app, self._store, client, self.config)
        self._queues = QueueRegistry(client, app.namespace, self.config.retry_s)
        self._claims = Claims(app, self._store, self._deliveries, self._queues, self.config)
        self._epoch = 0
        self._since_ms: int | None = None
        #: Schedules of the code that are to be written.
        self._unwritten: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_leading(self) -> bool:
        """Whether it led when it asked last."""
        return self._epoch > 0

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_failed(self) -> bool:
        """Whether its thread has ended without `stop`."""
        is_started = self._thread is not None and self._thread.ident is not None
        return is_started and not self.is_running and not self._stopping.is_set()

    def apply_declared(self) -> None:
        """Write the schedules of the code that are new or changed; the first error after all were tried."""
        self._unwritten = set(self._app.schedules.declared)
        self._write_declared()

    def _write_declared(self) -> None:
        """Those alone that are not written: others may have been changed by hand since."""
        errors: list[Exception] = []
        declared = self._app.schedules.declared
        for schedule in [one for name, one in declared.items() if name in self._unwritten]:
            try:
                version, is_changed = self._app.schedules.apply(schedule)
            except Exception as error:  # noqa: BLE001 -- of one schedule: raised after the others
                errors.append(error)
                continue
            self._unwritten.discard(schedule.name)
            if is_changed:
                _log.info("schedule %s of the code is written, version %d", schedule.name, version)
        if errors:
            raise errors[0]

    def tick(self) -> TickReport:
        """Enqueue what is due now, up to `batch_size` schedules.

        Raises:
            QueueError: Redis failed; the next tick goes on where this one has ended.
        """
        config = self.config
        tick = self._store.tick(
            config.name,
            self._epoch,
            lease_ms=round(config.lease_ttl_s * 1000),
            most=config.batch_size,
            after=self._deliveries.next_page(),
        )
        if self._since_ms not in (None, tick.since_ms):
            _log.error("the schedules are lost; beat %s writes those of its code again", config.name)
            self._unwritten = set(self._app.schedules.declared)
            self._queues.write_again()
        if tick.epoch and not self._epoch:
            _log.info("beat %s leads, epoch %d", config.name, tick.epoch)
        elif self._epoch and not tick.epoch:
            _log.warning("beat %s does not lead any more: %s does", config.name, tick.leader)
        self._epoch = tick.epoch
        if self._since_ms is None:
            # Lost between being written and this first tick, which has nothing to compare with.
            declared = set(self._app.schedules.declared)
            self._unwritten |= declared - {one.name for one in self._store.read_many(sorted(declared))}
        self._since_ms = tick.since_ms
        metrics.set_leading(self._app.namespace, is_leading=self.is_leading)
        if not tick.epoch:
            return TickReport(is_leading=False, wait_ms=round(config.poll_s * 1000))
        # First: a server that does not answer must not keep what is due from being claimed.
        claimed = self._claims.claim_due(tick)
        # Before they are delivered: what the outbox has is noted again by the next beat if this one dies.
        self._queues.note(one.delivery for one in tick.pending)
        self._queues.write()
        delivered = self._deliveries.deliver(tick.pending, config.batch_size)
        self._note_deliveries(tick, delivered)
        has_more = claimed.has_more or self._deliveries.has_more or len(tick.due) == config.batch_size
        wait_ms = round(config.poll_s * 1000)
        if tick.next_due_ms is not None and tick.next_due_ms > tick.now_ms:
            wait_ms = min(wait_ms, tick.next_due_ms - tick.now_ms)
        return TickReport(
            is_leading=True,
            claimed=claimed.count,
            skipped=claimed.skipped,
            delivered=delivered.count,
            errors=claimed.errors + len(delivered.failed),
            wait_ms=0 if has_more or delivered.count or claimed.count or claimed.skipped else wait_ms,
        )

    def run(self) -> None:
        """Tick until `stop`; whatever fails is logged, and tried again."""
        metrics.begin_counters(self._app.namespace)
        self._unwritten = set(self._app.schedules.declared)
        while not self._stopping.is_set():
            wait_ms = round(self.config.poll_s * 1000)
            try:
                self._write_declared()
            except Exception as error:  # noqa: BLE001 -- others are due all the same
                _log.warning("beat %s could not write a schedule of the code: %s", self.config.name, error)
            try:
                wait_ms = self.tick().wait_ms
            except Exception as error:  # noqa: BLE001 -- a beat that ends in silence would stop them all
                _log.warning("beat %s could not tick, and tries again: %s", self.config.name, error)
            if wait_ms:
                self._stopping.wait(wait_ms / 1000)
        self._release()

    def start(self) -> None:
        """Run in a thread of this process."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run_in_thread, name="conquiet-beat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have it end after its tick, and another beat lead at once."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for its end."""
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.join()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        finally:
            # By what is not an `Exception`, of which a thread may say nothing.
            if not self._stopping.is_set():
                _log.error("beat %s has ended by itself, and enqueues nothing any more", self.config.name)

    def _release(self) -> None:
        try:
            if self._epoch:
                self._store.release(self._epoch)
        except QueueError as error:
            _log.warning("the lease of beat %s ends by itself: %s", self.config.name, error)
        self._epoch = 0
        metrics.set_leading(self._app.namespace, is_leading=False)

    def _note_deliveries(self, tick: Tick, delivered: Delivered) -> None:
        texts = {
            name: self._deliveries.error_of(name) or text_of(error)
            for name, error in delivered.failed.items()
        }
        noted = [*texts, *delivered.recovered]
        kept = {stored.name: stored for stored in self._store.read_many(noted)}
        failed = [one for one in tick.pending if one.schedule in texts]
        dropped = self._deliveries.drop_deleted(failed, kept)
        for name, text in texts.items():
            metrics.count_error(self._app.namespace, "deliver")
            what_follows = "is tried again"
            if dropped[name]:
                what_follows = f"is dropped, {dropped[name]} in all, as the schedule was deleted"
            _log.warning(
                "an occurrence of schedule %s could not be delivered, and %s: %s", name, what_follows, text
            )
        for stored in kept.values():
            if stored.version:
                self._store.postpone(stored, self._epoch, None, self._deliveries.error_of(stored.name) or "")
