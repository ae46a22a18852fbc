"""The MQ's Prometheus metrics; labels are topic, partition, group and result, never ids or consumers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import Counter, Gauge, Histogram

from conquiet.queue.metrics import GaugePart, Metric, MetricSet

_PARTITION = ("topic", "partition", "group")
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800)
_Sum = partial(Gauge, multiprocess_mode="livesum")
_Seconds = partial(Histogram, buckets=_BUCKETS)

_METRICS: dict[str, tuple[Callable[..., Metric], str, tuple[str, ...]]] = {
    "conquiet_mq_produced_total": (Counter, "Messages sent.", ("topic", "partition")),
    "conquiet_mq_consumed_total": (Counter, "Messages handed to a handler.", _PARTITION),
    "conquiet_mq_settled_total": (Counter, "Messages settled, by result.", (*_PARTITION, "result")),
    "conquiet_mq_claimed_total": (
        Counter,
        "Messages taken over from earlier owners and dead readers.",
        _PARTITION,
    ),
    "conquiet_mq_leases_acquired_total": (Counter, "Partitions acquired.", _PARTITION),
    "conquiet_mq_leases_lost_total": (Counter, "Partitions lost while owned.", _PARTITION),
    "conquiet_mq_fenced_total": (Counter, "Settlements refused: another owner has the message.", _PARTITION),
    "conquiet_mq_worker_failures_total": (Counter, "Workers that ended with a Redis error.", _PARTITION),
    "conquiet_mq_database_unavailable_total": (
        Counter,
        "Messages kept because the database could not be reached.",
        _PARTITION,
    ),
    "conquiet_mq_trimmed_total": (Counter, "Entries trimmed by the topic's policy.", ("topic", "partition")),
    "conquiet_mq_dead_letters_trimmed_total": (
        Counter,
        "Dead letters deleted by the topic's policy.",
        ("topic",),
    ),
    "conquiet_mq_delayed_stuck_total": (
        Counter,
        "Delayed messages that could not be added to a partition, each time they were due.",
        ("topic",),
    ),
    "conquiet_mq_vanished_total": (Counter, "Pending entries that the stream no longer had.", _PARTITION),
    "conquiet_mq_later_version_total": (
        Counter,
        "Deliveries of messages that only a consumer of a later version can read; they stay pending.",
        _PARTITION,
    ),
    "conquiet_mq_in_flight": (_Sum, "Messages read and not settled.", _PARTITION),
    "conquiet_mq_partitions_owned": (_Sum, "Partitions owned by this process.", ("topic", "group")),
    "conquiet_mq_handlers_overdue": (
        _Sum,
        "Handlers that run longer than handler_timeout_s.",
        ("topic", "group"),
    ),
    "conquiet_mq_handle_seconds": (_Seconds, "Time in the handler.", _PARTITION),
    "conquiet_mq_settle_seconds": (_Seconds, "Time of a settlement's round trip.", _PARTITION),
    "conquiet_mq_end_to_end_seconds": (_Seconds, "From sending to the end of the handler.", _PARTITION),
}

_RARE = (
    "conquiet_mq_leases_lost_total",
    "conquiet_mq_fenced_total",
    "conquiet_mq_worker_failures_total",
    "conquiet_mq_database_unavailable_total",
    "conquiet_mq_vanished_total",
    "conquiet_mq_later_version_total",
)


_SET = MetricSet(_METRICS)
emit, emitter, observe_all = _SET.emit, _SET.emitter, _SET.observe_all


def gauge_part(name: str, *labels: str) -> GaugePart:
    """One consumer's part of a gauge."""
    return GaugePart(_SET, name, *labels)


def count_produced(topic: str, partition: int, messages: int) -> None:
    """Count messages that were added to a partition."""
    emit("conquiet_mq_produced_total", messages, topic, str(partition))


def count_acquired(topic: str, partition: str, group: str) -> None:
    """Count a partition that was acquired, and begin its other counters at 0."""
    emit("conquiet_mq_leases_acquired_total", 1, topic, partition, group)
    # Prometheus sees no increase in a counter that appears with its first event.
    for name in _RARE:
        emit(name, 0, topic, partition, group)
    for result in ("ack", "retry", "requeue", "dead_letter"):
        emit("conquiet_mq_settled_total", 0, topic, partition, group, result)
    emit("conquiet_mq_delayed_stuck_total", 0, topic)
