"""ConsumerLoop: one consumer of a worker, and its loop; begun anew after Redis failed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from conquiet.consume.engine import DrainLoop
from conquiet.consume.gate import Gate
from conquiet.consume.limits import DrainLimits
from conquiet.consume.outage import Outage
from conquiet.errors import ConquietError, DatabaseUnavailableError, DbError, QueueError
from conquiet.mq.clock import lease_clock
from conquiet.queue import open_client
from conquiet.queue.batch_size import BATCH_BYTES
from conquiet.tasks import scripts
from conquiet.tasks.app import TaskApp
from conquiet.tasks.canvas.follow_ups import FollowUps
from conquiet.tasks.channel import TaskChannel
from conquiet.tasks.errors import HardStopError
from conquiet.tasks.handling import Execution, TaskHandling
from conquiet.tasks.interruption import Interruption
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.options import UNFINISHED_TTL_MS
from conquiet.tasks.worker.config import WorkerConfig

_log = logging.getLogger(__name__)

_LIMITS = DrainLimits(max_messages=None, idle_ms=None, max_failures=None)


class ConsumerLoop:
    """Runs tasks one after the other, until it is stopped; its own thread, connection and consumer name."""

    def __init__(self, app: TaskApp, config: WorkerConfig, number: int, execution: Execution) -> None:
        self._app = app
        self._config = config
        self._name = f"{config.name}.{number}"
        self._execution = execution
        self._has_begun = False
        #: When Redis last answered as it began (monotonic); `None`: it has not, this time.
        self._answered_at: float | None = None
        self._is_stopping = threading.Event()
        self._gate = Gate()
        self._loop: DrainLoop[TaskMessage] | None = None
        self._lock = threading.Lock()
        self._interruption = Interruption()
        #: Of the channel that is read now; its consumer must have a heartbeat.
        self.channel: TaskChannel | None = None
        #: What ended it, if it was not stopped.
        self.error: BaseException | None = None

    @property
    def running(self) -> tuple[TaskMessage, float] | None:
        """The task that runs now, and since when (monotonic)."""
        loop = self._loop
        in_handlers = [] if loop is None else loop.in_handlers()
        return next(((msg, since) for msg, since in in_handlers if msg.started_ms), None)

    def stop(self) -> None:
        """Finish the task that runs, hand back the others, and end."""
        self._is_stopping.set()
        with self._lock:
            if self._loop is not None:
                self._loop.stop()
            if (channel := self.channel) is not None:
                channel.wake()

    def settle_while_handling(self, msg: TaskMessage, then: Callable[[], object]) -> bool:
        """As `DrainLoop.settle_while_handling`."""
        loop = self._loop
        return loop is not None and loop.settle_while_handling(msg, then)

    def interrupt(self, task_id: str, error: BaseException) -> bool:
        """Raise an error inside of the task, if it runs here; for another thread."""
        return self._interruption.interrupt(task_id, error)

    def run(self) -> None:
        """Work until it is stopped, or Redis or the database has failed for as long as the config tolerates.

        Raises:
            DbError: also if the tables of the database cannot be created as it begins for the first time.
        """
        outage = Outage(self._config.max_outage_s)
        #: Whether the last line of the log was about the database.
        reported: bool | None = None
        while not self._is_stopping.is_set():
            self._answered_at = None
            try:
                self._run_once()
            except HardStopError:
                return
            except (QueueError, DbError) as error:
                if isinstance(error, DbError) and self._is_final(error):
                    raise
                # Not by how long it took to fail: a server that hangs takes long, and is not there either.
                if self._answered_at is not None and time.monotonic() - self._answered_at > 1:
                    outage.ended()
                # Once in an outage of each: of a hundred consumers each tries twenty times a minute.
                is_reported = outage.is_on and reported is isinstance(error, DbError)
                reported = isinstance(error, DbError)
                if outage.failed():
                    raise
                level = logging.DEBUG if is_reported else logging.WARNING
                _log.log(level, "consumer %s begins anew: %s", self._name, error)
                while not outage.is_time_to_try() and not self._is_stopping.wait(0.05):
                    pass

    def _is_final(self, error: DbError) -> bool:
        if isinstance(error, DatabaseUnavailableError):
            # The loop has waited for it already, for as long as is tolerated; before that nobody has.
            return self._answered_at is not None
        # A database that fails as Redis comes back is tried again; at the start it is wrongly set.
        return not self._has_begun

    def _run_once(self) -> None:
        # A name of its own each time: what a lost reply delivered is taken over as a dead consumer's. Also
        # among workers of one name: the first of two that ends would free what the other one runs.
        consumer = f"{self._name}.{uuid4().hex[:8]}"
        queues = [self._app.keys(queue) for queue in self._config.queues]
        client = open_client(self._app.settings.redis_url)
        try:
            valid_until = lease_clock() + self._config.lease_ms / 1000
            for keys in queues:
                scripts.heartbeat(client, keys, [consumer], self._config.lease_ms)
            channel = TaskChannel(
                client,
                queues,
                consumer,
                self._app,
                prefetch=self._config.prefetch_multiplier,
                follow=FollowUps(self._app).perform_or_keep,
                max_outage_s=self._config.max_outage_s,
                # Of all threads of the worker together.
                max_bytes=max(1, BATCH_BYTES // self._config.concurrency),
            )
            channel.lease_valid_until = valid_until
            self.channel = channel

            def write_record(msg: TaskMessage, fields: Mapping[str, Any]) -> bool:
                return msg.has_record and scripts.mark_running(
                    client, msg.place.keys, msg.id, fields, UNFINISHED_TTL_MS
                )

            handling = TaskHandling(
                self._app,
                consumer,
                write_record=write_record,
                execution=self._execution,
                interruption=self._interruption,
            )
            with handling:
                self._has_begun, self._answered_at = True, time.monotonic()
                loop = DrainLoop(channel, handling, _LIMITS, gate=self._gate)
                with self._lock:
                    self._loop = loop
                    if self._is_stopping.is_set():
                        loop.stop()
                loop.run()
        finally:
            self._loop, self.channel = None, None
            self._leave(consumer)
            client.close()

    def _leave(self, consumer: str) -> None:
        for queue in self._config.queues:
            keys = self._app.keys(queue)
            try:
                # Nothing runs here any more: what is still pending, as after a lost reply, is free at once.
                scripts.free_unbegun(self._app.client, keys, [consumer])
                scripts.heartbeat(self._app.client, keys, [consumer], 0)
            except ConquietError as error:
                _log.warning("consumer %s could not leave queue %r: %s", consumer, queue, error)
