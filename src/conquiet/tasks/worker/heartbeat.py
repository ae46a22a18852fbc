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

    name = "heartbeat"

    def __init__(self, app: TaskApp, config: WorkerConfig, loops: Sequence[ConsumerLoop]) -> None:
        self._app = app
        self._config = config
        self._loops = loops
        # A reply that does not come must not take the time in which the call could be made again.
        timeout_s = max(_SHORTEST_TIMEOUT_S, config.lease_ms / 4000)
        self._client = open_client(app.settings.redis_url, socket_timeout=timeout_s)
        #: Of a failure: a warning once in an outage.
        self._level = logging.WARNING
        tasks = app.tasks.values()
        begin_counters([(task.name, task.options.queue) for task in tasks], config.queues)

    def round(self, _has_ended: threading.Event) -> float:
        """Renew all of them."""
        try:
            self._beat()
        except ConquietError as error:
            _log.log(self._level, "the heartbeat of worker %s failed: %s", self._config.name, error)
            self._level = logging.DEBUG
            # Half of a lease later would be too late.
            return min(_TRY_AGAIN_S, self._config.lease_ms / 4000)
        self._level = logging.WARNING
        return self._config.lease_ms / 2000

    def close(self) -> None:
        """Close its connection; consumers leave by themselves."""
        self._client.close()

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
