"""MqCollector: lag, pending and dead letters for Prometheus, read only when scraped."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from conquiet.errors import QueueError, TopicError
from conquiet.mq.dead_letters.letters import DeadLetters
from conquiet.mq.look.admin import MqAdmin
from conquiet.mq.look.losses import topic_losses
from conquiet.mq.look.owners import group_owners
from conquiet.mq.look.stats import dead_consumers, oldest_age
from conquiet.mq.topics import Topic, Topics, name_of
from conquiet.queue.backlog import COUNT_LIMIT
from conquiet.queue.connection import Client

_log = logging.getLogger(__name__)

_PLACE = ("topic", "partition", "group")
_GAUGES = {
    "conquiet_mq_topic_length": ("Entries in the stream, finished ones too.", ("topic", "partition")),
    "conquiet_mq_dead_letters": ("Dead letters that were neither replayed nor purged.", ("topic",)),
    "conquiet_mq_delayed": ("Messages that wait to be added: delayed, or to be retried.", ("topic",)),
    "conquiet_mq_lost": ("Messages known to be lost in failovers, until the marks are deleted.", ("topic",)),
    "conquiet_mq_lag": ("Messages that the group has not been given; absent where unknown.", _PLACE),
    "conquiet_mq_pending": ("Messages delivered and not settled.", _PLACE),
    "conquiet_mq_oldest_pending_age_seconds": ("Age of the oldest pending message.", _PLACE),
    "conquiet_mq_oldest_undelivered_age_seconds": ("Age of the oldest undelivered message.", _PLACE),
    "conquiet_mq_pending_at_dead_consumers": (
        "Messages pending at consumers without lease or heartbeat that were not active for 5 minutes.",
        _PLACE,
    ),
    "conquiet_mq_dead_consumer_idle_seconds": (
        "How long ago the one of them was active that has been silent for longest.",
        _PLACE,
    ),
    "conquiet_mq_partition_owned": ("Whether a consumer owns the partition, 1 or 0.", _PLACE),
    "conquiet_mq_members": ("Consumers of the group that are alive.", ("topic", "group")),
}

_Families = dict[str, GaugeMetricFamily]


class MqCollector(Collector):
    """Register it with a Prometheus registry; Redis is read at each scrape, and never in between.

    If Redis or a topic cannot be read, `conquiet_mq_up` is 0 and there is no other figure: some of them would
    look like all.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> registry.register(MqCollector(client))
    """

    def __init__(
        self, client: Client, topics: Sequence[Topic | str] | None = None, *, count_limit: int = COUNT_LIMIT
    ) -> None:
        """Collect figures of these topics, or of every one in the registry."""
        self._client = client
        self._names = None if topics is None else [name_of(topic) for topic in topics]
        self._count_limit = count_limit

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The names alone, so that registering reads nothing."""
        yield _up()
        yield from _families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read Redis; a Redis failure is logged, never raised."""
        families = _families()
        up = _up()
        try:
            for name in Topics(self._client).names() if self._names is None else self._names:
                # Not created yet, or deleted meanwhile: there are no figures.
                with suppress(TopicError):
                    self._add_topic(families, name)
        except QueueError as error:
            _log.warning("the MQ's figures could not be collected: %s", error)
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        yield from families.values()

    def _add_topic(self, families: _Families, name: str) -> None:
        admin = MqAdmin(self._client)
        topic = Topics(self._client).open(name)
        stats = admin.topic(name)
        groups = admin.groups(name, count_limit=self._count_limit)
        letters = DeadLetters(topic).count()
        for partition, length in enumerate(stats.lengths):
            families["conquiet_mq_topic_length"].add_metric((name, str(partition)), length)
        families["conquiet_mq_dead_letters"].add_metric((name,), letters)
        lost = sum(loss.count for loss in topic_losses(topic))
        families["conquiet_mq_lost"].add_metric((name,), lost)
        families["conquiet_mq_delayed"].add_metric((name,), stats.delayed)
        for group in groups:
            owners = group_owners(topic, group.group)
            for part in group.partitions:
                dead = [one for one in dead_consumers(part.consumers, owners.live) if one.pending]
                figures = {
                    "conquiet_mq_lag": part.lag,
                    "conquiet_mq_pending": part.pending,
                    "conquiet_mq_oldest_pending_age_seconds": _seconds(part.oldest_pending_age_ms),
                    "conquiet_mq_oldest_undelivered_age_seconds": _seconds(part.oldest_undelivered_age_ms),
                    "conquiet_mq_pending_at_dead_consumers": sum(one.pending for one in dead),
                    "conquiet_mq_dead_consumer_idle_seconds": _seconds(
                        oldest_age(one.idle_ms for one in dead) or 0
                    ),
                }
                for metric, figure in figures.items():
                    if figure is not None:
                        families[metric].add_metric((name, str(part.partition), group.group), figure)
            has_owner = any(lease.owner is not None for lease in owners.partitions)
            if topic.layout == "bare_stream" and not has_owner and not owners.members:
                # A plain stream may well be consumed by plain queues, which need no leases.
                continue
            for lease in owners.partitions:
                labels = (name, str(lease.partition), group.group)
                families["conquiet_mq_partition_owned"].add_metric(labels, int(lease.owner is not None))
            families["conquiet_mq_members"].add_metric((name, group.group), len(owners.members))


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _up() -> GaugeMetricFamily:
    return GaugeMetricFamily("conquiet_mq_up", "Whether the last scrape could read every topic.")


def _families() -> _Families:
    return {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _GAUGES.items()}
