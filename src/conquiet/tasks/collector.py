"""TaskCollector: the depth of task queues and what else they have, for Prometheus; read only when scraped."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from conquiet.errors import QueueError
from conquiet.queue.connection import Client, as_text, run_command
from conquiet.tasks.control.queues import QueueStats, read_stats
from conquiet.tasks.keys import QueueKeys, registry_key

_log = logging.getLogger(__name__)

_GAUGES = {
    "conquiet_tasks_queue_depth": "Tasks that no worker has read yet.",
    "conquiet_tasks_queue_reserved": "Tasks that a worker has read: they run, or are next.",
    "conquiet_tasks_queue_waiting": "Tasks that wait for their retry, their rate or another worker.",
    "conquiet_tasks_queue_delayed": "Tasks that are not due yet.",
    "conquiet_tasks_queue_dead_letters": "Tasks that will not be tried again.",
    "conquiet_tasks_queue_oldest_age_seconds": "Age of the oldest task in its stream; absent without any.",
    "conquiet_tasks_queue_consumers": "Consumers of workers that are alive.",
    "conquiet_tasks_queue_paused": "Whether the queue is paused, 1 or 0.",
}

_Families = dict[str, GaugeMetricFamily]


class TaskCollector(Collector):
    """Register it with a Prometheus registry; Redis is read at each scrape, one script for each queue.

    If Redis or a queue cannot be read, `conquiet_tasks_up` is 0 and there is no other figure: some of them
    would look like all.

    Args:
        namespace: that of the `TaskApp`.
        queues: their names; without, every queue of the namespace.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> registry.register(TaskCollector(app.client))
    """

    def __init__(self, client: Client, namespace: str = "tasks", queues: Sequence[str] | None = None) -> None:
        self._client = client
        self._namespace = namespace
        self._queues = queues

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The names alone, so that registering reads nothing."""
        yield _up()
        yield from _families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read Redis; a Redis failure is logged, never raised."""
        families, up = _families(), _up()
        try:
            queues = self._queues
            if queues is None:
                key = registry_key(self._namespace)
                queues = sorted(
                    map(as_text, run_command(self._client, "SMEMBERS", key, stream=key, group=None))
                )
            for queue in queues:
                _add(families, read_stats(self._client, QueueKeys(self._namespace, queue)))
        except QueueError as error:
            _log.warning("the figures of task queues could not be collected: %s", error)
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        yield from families.values()


def _add(families: _Families, stats: QueueStats) -> None:
    figures = {
        "conquiet_tasks_queue_depth": stats.queued,
        "conquiet_tasks_queue_reserved": stats.in_flight,
        "conquiet_tasks_queue_waiting": stats.waiting,
        "conquiet_tasks_queue_delayed": stats.delayed,
        "conquiet_tasks_queue_dead_letters": stats.dead_letters,
        "conquiet_tasks_queue_oldest_age_seconds": (
            None if stats.oldest_age_ms is None else stats.oldest_age_ms / 1000
        ),
        "conquiet_tasks_queue_consumers": stats.consumers,
        "conquiet_tasks_queue_paused": int(stats.is_paused),
    }
    for metric, figure in figures.items():
        if figure is not None:
            families[metric].add_metric((stats.queue,), figure)


def _up() -> GaugeMetricFamily:
    return GaugeMetricFamily("conquiet_tasks_up", "Whether the last scrape could read every task queue.")


def _families() -> _Families:
    return {name: GaugeMetricFamily(name, text, labels=("queue",)) for name, text in _GAUGES.items()}
