"""Heartbeat: keeps a worker's consumers alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from conquiet.errors import ConquietError
from conquiet.logs import MessageLog
from conquiet.mq.clock import lease_clock
from conquiet.queue import open_client
from conquiet.tasks import scripts
from conquiet.tasks.app import TaskApp
from conquiet.tasks.metrics import METRICS, begin_counters
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.loop import ConsumerLoop

_log = MessageLog(logging.getLogger(__name__))

_SHORTEST_TIMEOUT_S = 0.5
_TRY_AGAIN_S = 0.1


class Heartbeat:
    """Renews at half of the lease; lives as long as the worker's loops.

    Its thread does nothing that may take long: whatever else a worker does in Redis has other threads.
    """

    def __init__(self, app: TaskApp, config: WorkerConfig, loops: Sequence[ConsumerLoop]) -> None:
        self._app = app
        self._config = config
        self._loops = loops
        # A reply that does not come must not take the time in which the call could be made again.
        timeout_s = max(_SHORTEST_TIMEOUT_S, config.lease_ms / 4000)
        self._client = open_client(app.settings.redis_url, socket_timeout=timeout_s)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conquiet-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        tasks = self._app.tasks.values()
        begin_counters([(task.name, task.options.queue) for task in tasks], self._config.queues)
        self._thread.start()

    def stop(self) -> None:
        """End; consumers leave by themselves."""
        self._has_ended.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        wait_s, level = 0.0, logging.WARNING
        while not self._has_ended.wait(wait_s):
            try:
                self._beat()
                wait_s, level = self._config.lease_ms / 2000, logging.WARNING
            except ConquietError as error:
                # Half of a lease later would be too late.
                wait_s = min(_TRY_AGAIN_S, self._config.lease_ms / 4000)
                _log.log(level, "the heartbeat of worker %s failed: %s", self._config.name, error)
                # Once in an outage.
                level = logging.DEBUG

    def _beat(self) -> None:
        channels = [channel for loop in self._loops if (channel := loop.channel) is not None]
        consumers = [channel.consumer for channel in channels]
        # Before the calls: on the server the lease begins later.
        now = lease_clock()
        for queue in self._config.queues if consumers else ():
            scripts.heartbeat(self._client, self._app.keys(queue), consumers, self._config.lease_ms)
            METRICS.emit("conquiet_tasks_heartbeats_total", len(consumers), queue)
        for channel in channels:
            # One that was late stays late: its tasks may be another worker's, and the loop begins anew.
            if now < channel.lease_valid_until:
                channel.lease_valid_until = now + self._config.lease_ms / 1000
