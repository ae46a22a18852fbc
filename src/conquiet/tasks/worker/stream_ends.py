"""StreamEnds: reports what a failover has lost of a worker's queues."""

from __future__ import annotations

import logging
import threading

from conquiet.errors import ConquietError
from conquiet.logs import MessageLog
from conquiet.queue import open_client
from conquiet.queue.connection import as_text, run_command
from conquiet.queue.ends import EndWatch
from conquiet.tasks.app import TaskApp
from conquiet.tasks.worker.config import WorkerConfig

_log = MessageLog(logging.getLogger(__name__))

_CHECK_EVERY_S = 1.0


class StreamEnds:
    """Checks once a second where the streams end; lives as long as the worker's loops."""

    name = "stream-ends"

    def __init__(self, app: TaskApp, config: WorkerConfig) -> None:
        self._app = app
        self._config = config
        self._client = open_client(app.settings.redis_url)
        self._ends = EndWatch(self._client, config.name)
        #: Queues that could not be checked when it was last tried.
        self._failing: set[str] = set()

    def round(self, _has_ended: threading.Event) -> float:
        """Check each queue."""
        for queue in self._config.queues:
            try:
                self._check(queue)
            except ConquietError as error:
                text = "worker %s could not check the ends of queue %r: %s"
                level = logging.DEBUG if queue in self._failing else logging.WARNING
                _log.log(level, text, self._config.name, queue, error)
                self._failing.add(queue)
            else:
                self._failing.discard(queue)
        return _CHECK_EVERY_S

    def close(self) -> None:
        """Close its connection."""
        self._client.close()

    def _check(self, queue: str) -> None:
        keys = self._app.keys(queue)
        used = run_command(self._client, "HKEYS", keys.meta, stream=keys.prefix, group=None)
        names = set(map(as_text, used))
        for priority, stream in enumerate(keys.streams):
            if f"p{priority}" in names:
                self._ends.watch(stream, keys.ends[priority], deletes=True)
        # Also those that the meta does not name any more: a failover may have lost it, too.
        streams = [stream for stream in keys.streams if stream in self._ends]
        if streams:
            self._ends.check(*streams)
