"""DeadWorkers: takes over from workers that are dead, and does what they have left to follow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial

from conquiet.errors import ConquietError
from conquiet.logs import MessageLog
from conquiet.queue import open_client
from conquiet.tasks import scripts
from conquiet.tasks.app import TaskApp
from conquiet.tasks.canvas.follow_ups import FollowUps
from conquiet.tasks.metrics import METRICS
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.loop import ConsumerLoop

_log = MessageLog(logging.getLogger(__name__))


class DeadWorkers:
    """Looks for them twice in a lease; lives as long as the worker's loops.

    A thread of its own: a dead worker may have left a group of 100,000 tasks to be enqueued, which takes
    longer than a heartbeat may be late.
    """

    name = "dead-workers"

    def __init__(self, app: TaskApp, config: WorkerConfig, loops: Sequence[ConsumerLoop]) -> None:
        self._app = app
        self._config = config
        self._loops = loops
        self._client = open_client(app.settings.redis_url)
        self._follow_ups = FollowUps(app)

    def round(self, has_ended: threading.Event) -> float:
        """Look at each queue."""
        for queue in self._config.queues:
            # What fails in one of them keeps nothing from the others.
            for look in (partial(self._take_over, has_ended), self._follow_ups.perform_left):
                try:
                    look(queue)
                except Exception as error:  # noqa: BLE001 -- nobody else takes over for this worker
                    text = "worker %s could not do for queue %r what dead workers have left: %s"
                    is_known = isinstance(error, ConquietError)
                    _log.warning(text, self._config.name, queue, error, exc_info=not is_known)
        return self._config.lease_ms / 2000

    def close(self) -> None:
        """Close its connection."""
        self._client.close()

    def _take_over(self, has_ended: threading.Event, queue: str) -> None:
        keys = self._app.keys(queue)
        while not has_ended.is_set():
            freed = scripts.take_over(self._client, keys, most=scripts.TAKE_OVER_PAGE)
            METRICS.emit("conquiet_tasks_taken_over_total", len(freed), queue)
            for one in freed:
                text = "task at entry %s of queue %r is taken over: worker %s is dead"
                _log.warning(text, one.entry_id, queue, one.consumer)
            if freed:
                self._wake()
            if len(freed) < scripts.TAKE_OVER_PAGE:
                return

    def _wake(self) -> None:
        # A wait for new tasks does not see what waits for another worker.
        for loop in self._loops:
            if (channel := loop.channel) is not None:
                channel.wake(for_good=False)
