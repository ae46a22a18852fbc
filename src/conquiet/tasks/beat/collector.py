"""BeatCollector: how many schedules there are and what is overdue, for Prometheus; read only when scraped."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from conquiet.errors import QueueError
from conquiet.queue.connection import Client
from conquiet.tasks.schedules.redis_store import RedisScheduleStore
from conquiet.tasks.schedules.store import BeatStats

_log = logging.getLogger(__name__)

_GAUGES = {
    "conquiet_beat_schedules": "Schedules, disabled and ended ones too.",
    "conquiet_beat_waiting": "Schedules that wait for their next occurrence.",
    "conquiet_beat_due": "Schedules whose next occurrence is due and not enqueued yet.",
    "conquiet_beat_overdue": "Of these, those that are due for longer than a minute.",
    "conquiet_beat_oldest_due_seconds": "For how long the oldest of them is due; 0 without any.",
    "conquiet_beat_pending": "Occurrences that were claimed and are not delivered yet.",
    "conquiet_beat_leaders": "Whether a beat leads, 1 or 0.",
    "conquiet_beat_epoch": "How often another beat began to lead.",
}


class BeatCollector(Collector):
    """Register it with a Prometheus registry; Redis is read at each scrape, by one script.

    If Redis cannot be read, `conquiet_beat_up` is 0 and there is no other figure.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> registry.register(BeatCollector(app.client))
    """

    def __init__(self, client: Client, namespace: str = "tasks") -> None:
        self._store = RedisScheduleStore(client, namespace)
        self._namespace = namespace

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The names alone, so that registering reads nothing."""
        yield _up()
        yield from _families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read Redis; a Redis failure is logged, never raised."""
        up = _up()
        try:
            stats = self._store.stats()
        except QueueError as error:
            _log.warning("the figures of schedules could not be collected: %s", error)
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        families = _families()
        for name, figure in _figures(stats).items():
            families[name].add_metric((self._namespace,), figure)
        yield from families.values()


def _figures(stats: BeatStats) -> dict[str, float]:
    return {
        "conquiet_beat_schedules": stats.schedules,
        "conquiet_beat_waiting": stats.waiting,
        "conquiet_beat_due": stats.due,
        "conquiet_beat_overdue": stats.overdue,
        "conquiet_beat_oldest_due_seconds": stats.oldest_overdue_ms / 1000,
        "conquiet_beat_pending": stats.pending,
        "conquiet_beat_leaders": int(stats.leader is not None),
        "conquiet_beat_epoch": stats.epoch,
    }


def _up() -> GaugeMetricFamily:
    return GaugeMetricFamily("conquiet_beat_up", "Whether the last scrape could read the schedules.")


def _families() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(name, text, labels=("namespace",)) for name, text in _GAUGES.items()}
