"""The Prometheus metrics of the queue, and what every metric here has in common: it never raises."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter as CounterOf
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_log = logging.getLogger(__name__)

Metric = Counter | Gauge | Histogram

_METRICS: dict[str, tuple[type[Counter | Histogram], str]] = {
    "conquiet_queue_messages_read_total": (Counter, "Messages delivered by XREADGROUP."),
    "conquiet_queue_messages_ack_total": (Counter, "Messages acknowledged by XACK."),
    "conquiet_queue_messages_claimed_total": (Counter, "Stale messages claimed by XCLAIM."),
    "conquiet_queue_read_latency_seconds": (Histogram, "Time a read took, waiting included."),
}


class QueueMetrics:
    """What happened on one stream, counted after Redis replied."""

    def __init__(self, stream: str, registry: CollectorRegistry | None = None) -> None:
        metrics = _queue_metrics(REGISTRY if registry is None else registry)
        self._read, self._ack, self._claimed, self._latency = (bind(metric, stream) for metric in metrics)

    def count_read(self, messages: int, seconds: float) -> None:
        """Count a read, with or without messages; the time it waited is part of its latency."""
        self._latency(seconds)
        if messages:
            self._read(messages)

    def count_acks(self, messages: int) -> None:
        self._ack(messages)

    def count_claims(self, messages: int) -> None:
        if messages:
            self._claimed(messages)


def count_lost(stream: str, messages: int) -> None:
    """Count messages that a failover has lost; 0 begins the counter."""
    _losses.emit("conquiet_queue_messages_lost_total", messages, stream)


def register(
    kind: Callable[..., Metric], name: str, text: str, labels: tuple[str, ...], **options: Any
) -> Metric | None:
    """Make a metric and register it, if possible; `None` if it cannot even be made."""
    # A name that is taken, a registry that refuses, an unwritable multiprocess directory: the queue goes on.
    for registry in (options.pop("registry", REGISTRY), None):
        try:
            return kind(name, text, labels, registry=registry, **options)
        except Exception as error:  # noqa: BLE001 -- document 000, 7: metrics never raise
            _log.warning("metric %s is not exposed in %r: %s", name, registry, error)
    return None


def bind(metric: Metric | None, *labels: str) -> Callable[[float], None]:
    """The function that counts, sets or observes the metric for these labels; it never raises."""
    try:
        child: Any = metric.labels(*labels) if metric is not None else None
    except Exception as error:  # noqa: BLE001 -- document 000, 7: metrics never raise
        _log.warning("metric %s is not exposed for %s: %s", metric, labels, error)
        child = None
    emit: Callable[[float], None]
    match child:
        case None:
            return lambda _amount: None
        case Counter():
            emit = child.inc
        case Gauge():
            emit = child.set
        case _:
            emit = child.observe

    def emit_if_possible(amount: float) -> None:
        try:
            emit(amount)
        except Exception as error:  # noqa: BLE001 -- document 000, 7: metrics never raise
            _log.debug("metric %s was not emitted: %s", metric, error)

    return emit_if_possible


class MetricSet:
    """The metrics of one part of conquiet, each registered with its first use; no method raises."""

    def __init__(self, definitions: Mapping[str, tuple[Callable[..., Metric], str, tuple[str, ...]]]) -> None:
        @cache
        def registered(name: str) -> Metric | None:
            kind, text, labels = definitions[name]
            return register(kind, name, text, labels)

        @cache
        def emitter(name: str, *labels: str) -> Callable[[float], None]:
            return bind(registered(name), *labels)

        self.definitions = definitions
        self.registered = registered
        #: The function that counts, observes or sets one metric, made once for each set of labels.
        self.emitter = emitter

    def emit(self, name: str, amount: float, *labels: str) -> None:
        """Count, observe or set."""
        self.emitter(name, *labels)(amount)

    def remove(self, name: str, *labels: str) -> None:
        """Show a metric with these labels no longer, until it is emitted again."""
        try:
            metric: Any = self.registered(name)
            metric.remove(*labels)
        except Exception as error:  # noqa: BLE001 -- metrics never raise
            _log.debug("metric %s was not removed: %s", name, error)
        # One that was made before would go on with what is shown no longer.
        self.emitter.cache_clear()

    def observe_all(self, name: str, amounts: Sequence[float], *labels: str) -> None:
        """Observe many amounts at once, to the same effect as one by one."""
        if not amounts:
            return
        try:
            histogram: Any = self.registered(name)
            add_observations(histogram.labels(*labels), amounts)
        except Exception as error:  # noqa: BLE001 -- metrics never raise
            _log.debug("metric %s was not emitted: %s", name, error)


class GaugePart:
    """One part of a gauge to which several owners in one process add."""

    def __init__(self, metrics: MetricSet, name: str, *labels: str) -> None:
        self._metrics = metrics
        self._name = name
        self._labels = labels
        self._value = 0.0

    def set(self, value: float) -> None:
        """Make this the part; never raises."""
        change, self._value = value - self._value, value
        try:
            gauge: Any = self._metrics.registered(self._name)
            gauge.labels(*self._labels).inc(change)
        except Exception as error:  # noqa: BLE001 -- metrics never raise
            _log.debug("metric %s was not emitted: %s", self._name, error)


def add_observations(child: Any, amounts: Sequence[float]) -> None:
    """Observe many amounts with one addition for each bucket."""
    # prometheus_client has no call for it. One by one, the two observations of each message cost a worker
    # with a handler that does nothing 7 % of its throughput.
    try:
        bounds, buckets, total = child._upper_bounds, child._buckets, child._sum
    except AttributeError:
        for amount in amounts:
            child.observe(amount)
        return
    for bucket, number in CounterOf(bisect_left(bounds, amount) for amount in amounts).items():
        buckets[bucket].inc(number)
    total.inc(sum(amounts))


@lru_cache(maxsize=16)
def _queue_metrics(registry: CollectorRegistry) -> list[Metric | None]:
    return [
        register(kind, name, text, ("stream",), registry=registry) for name, (kind, text) in _METRICS.items()
    ]


_losses = MetricSet(
    {
        "conquiet_queue_messages_lost_total": (
            Counter,
            "Messages that a failover has lost, as far as is known.",
            ("stream",),
        )
    }
)
