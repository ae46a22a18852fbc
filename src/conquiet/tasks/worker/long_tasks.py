"""LongTasks: does what a loop cannot do while its task runs for long."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from conquiet.logs import MessageLog
from conquiet.queue.metrics import GaugePart
from conquiet.tasks import scripts
from conquiet.tasks.app import TaskApp
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.metrics import METRICS
from conquiet.tasks.options import UNFINISHED_TTL_MS
from conquiet.tasks.settlement import TaskRules
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.loop import ConsumerLoop

_log = MessageLog(logging.getLogger(__name__))

_LONG_S = 0.1


class LongTasks:
    """Looks every 0.1 s; lives as long as the worker's loops.

    A task that runs for longer is shown as running. Those that its loop has finished before are settled, so
    that nobody waits for their results, and those that it has reserved are freed for other workers.
    """

    name = "long-tasks"

    def __init__(self, app: TaskApp, config: WorkerConfig, loops: Sequence[ConsumerLoop]) -> None:
        self._app = app
        self._worker = config.name
        self._loops = loops
        #: The attempts that were seen to, by the loop's number.
        self._seen: dict[int, tuple[str, int, float]] = {}
        self._in_flight = {
            queue: GaugePart(METRICS, "conquiet_tasks_in_flight", queue) for queue in config.queues
        }

    def round(self, _has_ended: threading.Event) -> float:
        """Look at each loop."""
        # Sampled, as a scrape is: to count each begin and end would cost a quick task more.
        running = Counter(
            running[0].place.keys.queue for loop in self._loops if (running := loop.running) is not None
        )
        for queue, part in self._in_flight.items():
            part.set(running[queue])
        for number, loop in enumerate(self._loops):
            try:
                self._see_to(number, loop)
            except Exception as error:  # noqa: BLE001 -- of one loop: others have long tasks, too
                text = "worker %s could not settle or free what it has beside a long task: %s"
                _log.warning(text, self._worker, error)
        return _LONG_S

    def close(self) -> None:
        """Nothing is in flight any more."""
        for part in self._in_flight.values():
            part.set(0)

    def _see_to(self, number: int, loop: ConsumerLoop) -> None:
        running, channel = loop.running, loop.channel
        if running is None or channel is None or time.monotonic() - running[1] < _LONG_S:
            return
        msg, since = running
        # Also when it began: what was handed back has its delivery count of before.
        attempt = (msg.id, msg.delivery_count, since)
        if self._seen.get(number) == attempt:
            return
        # All of them: none waits behind a long task while another worker is idle.
        channel.reserved.release(self._app.client)
        if loop.settle_while_handling(msg, partial(self._mark_running, msg, channel.rules)):
            self._seen[number] = attempt

    def _mark_running(self, msg: TaskMessage, rules: TaskRules) -> None:
        # While it runs: later it may be written that it waits to be tried again.
        if msg.has_record:
            record = rules.running_record(msg)
            scripts.mark_running(self._app.client, msg.place.keys, msg.id, record, UNFINISHED_TTL_MS)
