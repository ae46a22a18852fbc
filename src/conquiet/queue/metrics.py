"""The four Prometheus metrics of the queue, and what every metric here has in common: it never raises."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
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
        """Count acked messages."""
        self._ack(messages)

    def count_claims(self, messages: int) -> None:
        """Count claimed messages."""
        if messages:
            self._claimed(messages)


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


@lru_cache(maxsize=16)
def _queue_metrics(registry: CollectorRegistry) -> list[Metric | None]:
    return [
        register(kind, name, text, ("stream",), registry=registry) for name, (kind, text) in _METRICS.items()
    ]
