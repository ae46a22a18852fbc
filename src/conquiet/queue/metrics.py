"""The four Prometheus metrics of the queue; emitting one never raises."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

_log = logging.getLogger(__name__)
_M = TypeVar("_M", Counter, Histogram)

_COUNTERS = {
    "conquiet_queue_messages_read_total": "Messages delivered by XREADGROUP.",
    "conquiet_queue_messages_ack_total": "Messages acknowledged by XACK.",
    "conquiet_queue_messages_claimed_total": "Stale messages taken over by XCLAIM.",
}


class QueueMetrics:
    """What happened on one stream, counted after Redis said that it did."""

    def __init__(self, stream: str, registry: CollectorRegistry | None = None) -> None:
        metrics = _registered(REGISTRY if registry is None else registry)
        read, ack, claimed, latency = (_child_of(metric, stream) for metric in metrics)
        self._read = _silenced(getattr(read, "inc", None))
        self._ack = _silenced(getattr(ack, "inc", None))
        self._claimed = _silenced(getattr(claimed, "inc", None))
        self._latency = _silenced(getattr(latency, "observe", None))

    def count_read(self, messages: int, seconds: float) -> None:
        """A read came back, with or without messages; its waiting time is part of its latency."""
        self._latency(seconds)
        if messages:
            self._read(messages)

    def count_acks(self, messages: int) -> None:
        """An ack was answered."""
        self._ack(messages)

    def count_claims(self, messages: int) -> None:
        """A claim was answered."""
        if messages:
            self._claimed(messages)


@lru_cache(maxsize=16)
def _registered(registry: CollectorRegistry) -> tuple[Counter | Histogram | None, ...]:
    counters = [_made(Counter, name, text, registry) for name, text in _COUNTERS.items()]
    latency = _made(
        Histogram, "conquiet_queue_read_latency_seconds", "Time a read took, waiting included.", registry
    )
    return (*counters, latency)


def _made(kind: type[_M], name: str, text: str, registry: CollectorRegistry) -> _M | None:
    # A name that is taken, a registry that refuses, an unwritable multiprocess directory: the queue goes on.
    for target in (registry, None):
        try:
            return kind(name, text, ["stream"], registry=target)
        except Exception as error:  # noqa: BLE001 -- document 000, 7: metrics never raise
            _log.warning("metric %s is not exposed in %r: %s", name, target, error)
    return None


def _child_of(metric: Counter | Histogram | None, stream: str) -> Counter | Histogram | None:
    if metric is None:
        return None
    try:
        return metric.labels(stream)
    except Exception as error:  # noqa: BLE001 -- document 000, 7: metrics never raise
        _log.warning("metric for stream %r is not exposed: %s", stream, error)
        return None


def _silenced(emit: Callable[[float], None] | None) -> Callable[[float], None]:
    def emit_if_possible(amount: float) -> None:
        if emit is None:
            return
        try:
            emit(amount)
        except Exception as error:  # noqa: BLE001 -- document 000, 7: metrics never raise
            _log.debug("a metric was not emitted: %s", error)

    return emit_if_possible
