"""The MQ's Prometheus metrics; labels are topic, partition, group and result, never ids or consumers."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter as CounterOf
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

_log = logging.getLogger(__name__)

_PLACE = ("topic", "partition", "group")
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800)

_METRICS: dict[str, tuple[Callable[..., Any], str, tuple[str, ...], dict[str, Any]]] = {
    "conquiet_mq_produced_total": (Counter, "Messages sent.", ("topic", "partition"), {}),
    "conquiet_mq_consumed_total": (Counter, "Messages handed to a handler.", _PLACE, {}),
    "conquiet_mq_settled_total": (Counter, "Messages settled, by result.", (*_PLACE, "result"), {}),
    "conquiet_mq_claimed_total": (Counter, "Messages taken over from earlier owners.", _PLACE, {}),
    "conquiet_mq_leases_acquired_total": (Counter, "Partitions acquired.", _PLACE, {}),
    "conquiet_mq_leases_lost_total": (Counter, "Partitions lost while owned.", _PLACE, {}),
    "conquiet_mq_fenced_total": (
        Counter,
        "Settlements refused because the message had moved on.",
        _PLACE,
        {},
    ),
    "conquiet_mq_worker_failures_total": (Counter, "Workers that ended with a Redis error.", _PLACE, {}),
    "conquiet_mq_database_unavailable_total": (
        Counter,
        "Messages kept because the database could not be reached.",
        _PLACE,
        {},
    ),
    "conquiet_mq_trimmed_total": (
        Counter,
        "Entries that consumers removed by the topic's policy.",
        ("topic", "partition"),
        {},
    ),
    "conquiet_mq_delayed_stuck_total": (
        Counter,
        "Delayed messages that could not be added to a partition, each time they were due.",
        ("topic",),
        {},
    ),
    "conquiet_mq_vanished_total": (Counter, "Pending entries that the stream no longer had.", _PLACE, {}),
    "conquiet_mq_in_flight": (
        Gauge,
        "Messages read and not settled.",
        _PLACE,
        {"multiprocess_mode": "livesum"},
    ),
    "conquiet_mq_partitions_owned": (
        Gauge,
        "Partitions owned by this process.",
        ("topic", "group"),
        {"multiprocess_mode": "livesum"},
    ),
    "conquiet_mq_handlers_overdue": (
        Gauge,
        "Handlers that run longer than handler_timeout_s.",
        ("topic", "group"),
        {"multiprocess_mode": "livesum"},
    ),
    "conquiet_mq_handle_seconds": (Histogram, "Time in the handler.", _PLACE, {"buckets": _BUCKETS}),
    "conquiet_mq_settle_seconds": (
        Histogram,
        "Time of a settlement's round trip.",
        _PLACE,
        {"buckets": _BUCKETS},
    ),
    "conquiet_mq_end_to_end_seconds": (
        Histogram,
        "From sending to the end of the handler.",
        _PLACE,
        {"buckets": _BUCKETS},
    ),
}


_RARE = (
    "conquiet_mq_leases_lost_total",
    "conquiet_mq_fenced_total",
    "conquiet_mq_worker_failures_total",
    "conquiet_mq_database_unavailable_total",
    "conquiet_mq_vanished_total",
)


def emit(name: str, amount: float, *labels: str) -> None:
    """Count, observe or set; never raises."""
    emitter(name, *labels)(amount)


@cache
def emitter(name: str, *labels: str) -> Callable[[float], None]:
    """What counts, observes or sets one metric: looked up once for what is emitted with every message."""
    try:
        emit_or_raise = _bound(name, *labels)
    except Exception as error:  # noqa: BLE001 -- metrics never raise
        _log.warning("metric %s is not emitted: %s", name, error)
        return lambda _amount: None

    def emit_if_possible(amount: float) -> None:
        try:
            emit_or_raise(amount)
        except Exception as error:  # noqa: BLE001 -- metrics never raise
            _log.debug("metric %s was not emitted: %s", name, error)

    return emit_if_possible


class GaugePart:
    """One consumer's part of a gauge to which several consumers of a process add."""

    def __init__(self, name: str, *labels: str) -> None:
        self._name = name
        self._labels = labels
        self._value = 0.0

    def set(self, value: float) -> None:
        """Make this the part; never raises."""
        change, self._value = value - self._value, value
        if change:
            try:
                _registered(self._name).labels(*self._labels).inc(change)  # type: ignore[union-attr]  # a gauge
            except Exception as error:  # noqa: BLE001 -- metrics never raise
                _log.debug("metric %s was not emitted: %s", self._name, error)


def observe_all(name: str, amounts: Sequence[float], *labels: str) -> None:
    """Observe many amounts at once, to the same effect as one by one; never raises."""
    if not amounts:
        return
    try:
        _observe_all(_registered(name).labels(*labels), amounts)
    except Exception as error:  # noqa: BLE001 -- metrics never raise
        _log.debug("metric %s was not emitted: %s", name, error)


def count_produced(topic: str, partition: int, messages: int) -> None:
    """Messages were added to a partition."""
    emit("conquiet_mq_produced_total", messages, topic, str(partition))


def count_acquired(topic: str, partition: str, group: str) -> None:
    """A partition was acquired; what may happen to it is counted from 0 on."""
    emit("conquiet_mq_leases_acquired_total", 1, topic, partition, group)
    # Prometheus sees no increase in a counter that appears with its first event.
    for name in _RARE:
        emit(name, 0, topic, partition, group)
    for result in ("ack", "retry", "requeue", "dead_letter"):
        emit("conquiet_mq_settled_total", 0, topic, partition, group, result)
    emit("conquiet_mq_delayed_stuck_total", 0, topic)


def _bound(name: str, *labels: str) -> Callable[[float], None]:
    child = _registered(name).labels(*labels)
    if isinstance(child, Counter):
        return child.inc
    return child.set if isinstance(child, Gauge) else child.observe


def _observe_all(child: Any, amounts: Sequence[float]) -> None:
    # What `observe` does, with one addition for each bucket: one by one, the two observations of each message
    # took a tenth of a worker's time. prometheus_client has no call for it, and its insides may change.
    try:
        bounds, buckets, total = child._upper_bounds, child._buckets, child._sum
    except AttributeError:
        for amount in amounts:
            child.observe(amount)
        return
    for bucket, number in CounterOf(bisect_left(bounds, amount) for amount in amounts).items():
        buckets[bucket].inc(number)
    total.inc(sum(amounts))


@cache
def _registered(name: str) -> Counter | Gauge | Histogram:
    kind, text, labels, options = _METRICS[name]
    try:
        made: Counter | Gauge | Histogram = kind(name, text, labels, **options)
    except ValueError as error:
        _log.warning("metric %s is not exposed: %s", name, error)
        made = kind(name, text, labels, registry=None, **options)
    return made
