"""QueueRegistry: lists the queues of schedules with those of the app, best effort."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic

from redis.cluster import RedisCluster

from conquiet.errors import QueueError, text_of
from conquiet.queue.connection import Client, run_command
from conquiet.tasks.keys import registry_key
from conquiet.tasks.schedules.store import Delivery, TaskDelivery, UnreadableDelivery

_log = logging.getLogger(__name__)


class QueueRegistry:
    """Adds queues to the list by which `app.queues()` and the metrics know them; lives as long as its beat.

    On a cluster the list may be on another node than the schedules: while that does not answer, what is due
    is claimed all the same, and the list is written later.
    """

    def __init__(self, client: Client, namespace: str, retry_s: float) -> None:
        self._client = client
        self._key = registry_key(namespace)
        self._retry_s = retry_s
        #: Whether it is on the server that has the schedules, and answers if that does.
        self.is_beside_schedules = not isinstance(client, RedisCluster)
        self._new: set[str] = set()
        self._written: set[str] = set()
        self._not_before = 0.0

    def note(self, deliveries: Iterable[Delivery | UnreadableDelivery]) -> None:
        """Have `write` add the queues of tasks that are new to this beat."""
        queues = {one.queue for one in deliveries if isinstance(one, TaskDelivery)}
        self._new |= queues - self._written

    def write_again(self) -> None:
        """Have `write` add all of them: the server has lost its data."""
        self._new |= self._written
        self._written.clear()

    def write(self) -> None:
        """Add what is new; a failure is logged, and it is tried again later."""
        begun = monotonic()
        if not self._new or begun < self._not_before:
            return
        try:
            run_command(self._client, "SADD", self._key, *sorted(self._new), stream=self._key, group=None)
        except QueueError as error:
            # A node that hangs must not take more than a tenth of the beat's time.
            self._not_before = monotonic() + max(self._retry_s, 10 * (monotonic() - begun))
            _log.warning(
                "queues %s are not listed yet, which is tried again: %s",
                ", ".join(sorted(self._new)),
                text_of(error),
            )
            return
        self._written |= self._new
        self._new.clear()
