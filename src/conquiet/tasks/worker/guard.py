"""TaskGuard: what the parent of a process pool does in Redis for the tasks of its children."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from sqlalchemy.exc import SQLAlchemyError

from conquiet.consume.outage import Outage
from conquiet.consume.outcome import Ack
from conquiet.errors import ConquietError
from conquiet.queue import open_client
from conquiet.queue.connection import Client, as_text, run_command
from conquiet.queue.message import data_of
from conquiet.tasks import clock, scripts
from conquiet.tasks.app import TaskApp
from conquiet.tasks.canvas.follow_ups import FollowUps
from conquiet.tasks.channel import TaskChannel
from conquiet.tasks.errors import HardTimeLimitError, TaskError
from conquiet.tasks.handling import TaskHandling
from conquiet.tasks.keys import GROUP, QueueKeys
from conquiet.tasks.message import Place, TaskMessage
from conquiet.tasks.metrics import METRICS
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.execution import ThreadExecution
from conquiet.tasks.worker.slot import RunningTask

_log = logging.getLogger(__name__)

_WHAT_FOLLOWS = {
    "retry": "it will be retried",
    "dead_letter": "it becomes a dead letter",
    "ack": "it had succeeded",
}


@dataclass(frozen=True, slots=True)
class DeadChild:
    """A child that has died, and the task that it ran."""

    name: str
    running: RunningTask | None
    cause: TaskError


class TaskGuard:
    """Settles what dead children ran and frees what they had reserved; keeps alive what busy ones run.

    A thread of its own, so that a slow server delays no hard time limit. A child whose task keeps Python from
    switching threads cannot renew its heartbeat, so its parent does.
    """

    def __init__(
        self, app: TaskApp, config: WorkerConfig, running: Callable[[], Sequence[RunningTask]]
    ) -> None:
        self._app = app
        self._config = config
        self._running = running
        self._client = open_client(app.settings.redis_url)
        #: `None` ends the thread.
        self._dead: SimpleQueue[DeadChild | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="conquiet-guard", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def died(self, child: DeadChild) -> None:
        """Settle what it ran, and free what it had reserved."""
        self._dead.put(child)

    def stop(self) -> None:
        """Finish what is to be settled, and end."""
        self._dead.put(None)
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        if any(task.signature.session_parameter for task in self._app.tasks.values()):
            # To import the driver may take longer than a dead child's task waits; nothing connects yet.
            with suppress(SQLAlchemyError, ImportError):
                _ = self._app.engine, self._app.async_engine
        next_beat = 0.0
        while True:
            try:
                child = self._dead.get(timeout=max(0.0, next_beat - time.monotonic()))
            except Empty:
                next_beat = time.monotonic() + self._config.lease_ms / 2000
                self._beat()
                continue
            if child is None:
                return
            self._settle(child)

    def _beat(self) -> None:
        for task in self._running():
            try:
                scripts.heartbeat(
                    self._client, self._app.keys(task.queue), [task.consumer], self._config.lease_ms
                )
                METRICS.emit("conquiet_tasks_heartbeats_total", 1, task.queue)
            except ConquietError as error:
                _log.warning("the heartbeat of worker %s failed: %s", self._config.name, error)

    def _settle(self, child: DeadChild) -> None:
        # After so long it is another worker's: its heartbeat has ended.
        outage = Outage(self._config.heartbeat_ttl_s)
        while True:
            try:
                if child.running is not None:
                    self._settle_running(child.running, child.cause)
                for queue in self._config.queues:
                    self._free_reserved(self._app.keys(queue), child.name)
            except (ConquietError, SQLAlchemyError, ValueError) as error:
                if outage.failed():
                    _log.error("what process %s had is left to other workers: %s", child.name, error)
                    return
                time.sleep(0.05)
            else:
                return

    def _settle_running(self, task: RunningTask, cause: TaskError) -> None:
        keys = self._app.keys(task.queue)
        # Nobody else renews it now, and the database may take its time to answer.
        scripts.heartbeat(self._client, keys, [task.consumer], self._config.lease_ms)
        msg = self._message(keys, task)
        if msg is None:
            return
        channel = TaskChannel(
            self._client,
            [keys],
            task.consumer,
            self._app,
            prefetch=1,
            follow=FollowUps(self._app).perform_or_keep,
        )
        # It may have died after its commit.
        result = Ack() if self._is_committed(msg) else cause
        seconds = max(0.0, (clock.now_ms() - task.started_ms) / 1000)
        settlement = channel.decide(msg, result, seconds)
        channel.settle([settlement])
        if not settlement.is_refused:
            if isinstance(cause, HardTimeLimitError):
                METRICS.emit("conquiet_tasks_hard_limits_total", 1, msg.envelope.name, task.queue)
            text = "task %s %s at attempt %s: %s; %s"
            what = _WHAT_FOLLOWS[settlement.kind]
            _log.warning(text, msg.envelope.name, msg.id, task.delivery_count - 1, cause, what)

    def _is_committed(self, msg: TaskMessage) -> bool:
        # A task without a session is settled also while the database is unavailable.
        if msg.task is None or msg.task.signature.session_parameter is None:
            return False
        handling = TaskHandling(
            self._app, self._config.name, write_record=lambda *_: None, execution=ThreadExecution()
        )
        with handling:
            return handling.has_handled(msg)

    def _message(self, keys: QueueKeys, task: RunningTask) -> TaskMessage | None:
        stream = keys.streams[task.priority]
        entries = read_entry(self._client, stream, task.entry_id)
        # Settled before the child died, or deleted by hand.
        if not entries:
            return None
        data = data_of(entries)
        envelope = self._app.codec.decode(data)
        return TaskMessage(
            place=Place(keys=keys, priority=task.priority, entry_id=task.entry_id),
            envelope=envelope,
            data=data,
            delivery_count=task.delivery_count,
            is_counted=True,
            task=self._app.tasks.get(envelope.name),
            started_ms=task.started_ms,
        )

    def _free_reserved(self, keys: QueueKeys, child: str) -> None:
        names = run_command(self._client, "ZRANGE", keys.heartbeats, 0, -1, stream=keys.prefix, group=GROUP)
        dead = [name for name in map(as_text, names) if name.startswith(f"{child}.")]
        if dead:
            scripts.free_unbegun(self._client, keys, dead)
            scripts.heartbeat(self._client, keys, dead, 0)


def read_entry(client: Client, stream: str, entry_id: str) -> list[bytes]:
    """The fields of one entry; empty if there is none."""
    reply = run_command(client, "XRANGE", stream, entry_id, entry_id, stream=stream, group=GROUP)
    return [part for _, fields in reply for pair in fields.items() for part in pair]
