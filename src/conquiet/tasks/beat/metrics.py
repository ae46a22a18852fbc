"""What a beat counts, for Prometheus; without labels by schedule, of which there may be thousands."""

from __future__ import annotations

from functools import partial

from prometheus_client import Counter, Gauge, Histogram

from conquiet.queue.metrics import MetricSet

_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400)

_LABELS = ("namespace",)

METRICS = MetricSet(
    {
        "conquiet_beat_enqueued_total": (Counter, "Occurrences that were enqueued.", _LABELS),
        "conquiet_beat_skipped_total": (Counter, "Occurrences that were late and not enqueued.", _LABELS),
        "conquiet_beat_errors_total": (
            Counter,
            "Times that a schedule could not be read or claimed, or an occurrence not delivered.",
            (*_LABELS, "step"),
        ),
        "conquiet_beat_drift_seconds": (
            partial(Histogram, buckets=_BUCKETS),
            "How much later than due occurrences were enqueued.",
            _LABELS,
        ),
        "conquiet_beat_leading": (
            partial(Gauge, multiprocess_mode="livesum"),
            "Whether this process leads, 1 or 0.",
            _LABELS,
        ),
    }
)


def begin_counters(namespace: str) -> None:
    """At 0: an increase is seen from the first one on."""
    for step in ("read", "claim", "deliver"):
        METRICS.emit("conquiet_beat_errors_total", 0, namespace, step)
    METRICS.emit("conquiet_beat_enqueued_total", 0, namespace)
    METRICS.emit("conquiet_beat_skipped_total", 0, namespace)


def count_error(namespace: str, step: str) -> None:
    """Count a schedule that could not be read or claimed, or whose occurrence could not be delivered."""
    METRICS.emit("conquiet_beat_errors_total", 1, namespace, step)


def count_claimed(namespace: str, drifts_s: list[float], skipped: int) -> None:
    """Count what one claim has enqueued and skipped."""
    METRICS.emit("conquiet_beat_enqueued_total", len(drifts_s), namespace)
    METRICS.emit("conquiet_beat_skipped_total", skipped, namespace)
    for drift_s in drifts_s:
        METRICS.emit("conquiet_beat_drift_seconds", drift_s, namespace)


def set_leading(namespace: str, *, is_leading: bool) -> None:
    """Whether this process leads."""
    METRICS.emit("conquiet_beat_leading", int(is_leading), namespace)
