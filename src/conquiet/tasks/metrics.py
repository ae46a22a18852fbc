"""The task layer's Prometheus metrics; labels are task and queue, never ids or workers."""

from __future__ import annotations

import os
from collections import Counter as CounterOf
from collections.abc import Container, Iterable, Sequence
from functools import partial

from prometheus_client import Counter, Gauge, Histogram

from conquiet.queue.metrics import MetricSet

#: In the place of a name that the worker does not know: anybody may write any number of them.
UNKNOWN = "unknown"
_TASK = ("task", "queue")
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 3, 5, 10, 30, 60, 300, 600, 1800, 3600)
_Sum = partial(Gauge, multiprocess_mode="livesum")
_Seconds = partial(Histogram, buckets=_BUCKETS)

METRICS = MetricSet(
    {
        "conquiet_tasks_enqueued_total": (Counter, "Tasks enqueued.", _TASK),
        "conquiet_tasks_deduplicated_total": (
            Counter,
            "Tasks that were not enqueued: a unique one like it, or the same id, was there.",
            _TASK,
        ),
        "conquiet_tasks_started_total": (Counter, "Attempts that began.", _TASK),
        "conquiet_tasks_succeeded_total": (Counter, "Tasks that succeeded.", _TASK),
        "conquiet_tasks_retried_total": (Counter, "Attempts that failed and are tried again.", _TASK),
        "conquiet_tasks_failed_total": (Counter, "Tasks that failed and became dead letters.", _TASK),
        "conquiet_tasks_revoked_total": (Counter, "Tasks that were revoked before they began.", _TASK),
        "conquiet_tasks_expired_total": (Counter, "Tasks that expired before they began.", _TASK),
        "conquiet_tasks_rate_limited_total": (Counter, "Times a task had to wait for its rate.", _TASK),
        "conquiet_tasks_soft_limits_total": (
            Counter,
            "Attempts that reached their soft time limit.",
            _TASK,
        ),
        "conquiet_tasks_hard_limits_total": (
            Counter,
            "Processes killed because their task reached its hard time limit.",
            _TASK,
        ),
        "conquiet_tasks_signature_invalid_total": (
            Counter,
            "Entries without a valid signature, or that could not be decrypted.",
            ("queue",),
        ),
        "conquiet_tasks_malformed_total": (Counter, "Entries that are no tasks.", ("queue",)),
        "conquiet_tasks_fenced_total": (
            Counter,
            "Settlements refused: another worker has the task.",
            ("queue",),
        ),
        "conquiet_tasks_taken_over_total": (Counter, "Tasks of dead workers that were freed.", ("queue",)),
        "conquiet_tasks_heartbeats_total": (Counter, "Heartbeats renewed.", ("queue",)),
        "conquiet_tasks_in_flight": (_Sum, "Tasks that run in this process.", ("queue",)),
        "conquiet_tasks_duration_seconds": (_Seconds, "Time in the function.", _TASK),
        "conquiet_tasks_queue_wait_seconds": (_Seconds, "From when it could run to its begin.", _TASK),
        "conquiet_tasks_end_to_end_seconds": (_Seconds, "From its enqueueing to its end.", _TASK),
    }
)

#: By the state of a settlement.
_BY_STATE = {
    "succeeded": "conquiet_tasks_succeeded_total",
    "retried": "conquiet_tasks_retried_total",
    "dead_lettered": "conquiet_tasks_failed_total",
    "revoked": "conquiet_tasks_revoked_total",
    "expired": "conquiet_tasks_expired_total",
}


#: What alerts ask for, by task and by queue.
_RARE_OF_TASK = (
    *("conquiet_tasks_succeeded_total", "conquiet_tasks_failed_total", "conquiet_tasks_retried_total"),
    *("conquiet_tasks_soft_limits_total", "conquiet_tasks_hard_limits_total"),
)
_RARE_OF_QUEUE = (
    *("conquiet_tasks_signature_invalid_total", "conquiet_tasks_malformed_total"),
    *("conquiet_tasks_fenced_total", "conquiet_tasks_taken_over_total"),
)


def begin_counters(tasks: Iterable[tuple[str, str]], queues: Iterable[str]) -> None:
    """Begin the counters of tasks, each with its queue, at 0: an increase is seen from the first one on."""
    for task, queue in tasks:
        for name in _RARE_OF_TASK:
            METRICS.emit(name, 0, task, queue)
    for queue in queues:
        for name in _RARE_OF_QUEUE:
            METRICS.emit(name, 0, queue)


def count_enqueued(task: str, queue: str, *, is_new: bool) -> None:
    """Count a task that was enqueued, or found."""
    name = "conquiet_tasks_enqueued_total" if is_new else "conquiet_tasks_deduplicated_total"
    METRICS.emit(name, 1, task, queue)


def forget_process(pid: int) -> None:
    """A child has ended: where processes count in files of prometheus_client, its gauges end with it."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid)  # type: ignore[no-untyped-call]


class TaskMetrics:
    """What one consumer counts, emitted together with its settlements; one thread."""

    def __init__(self, known: Container[str]) -> None:
        #: Names of tasks: others are one label, not one each.
        self._known = known
        #: Of attempts that have ended, by task and queue: duration, wait, and from the first to the end.
        self._ended: dict[tuple[str, str], list[tuple[float, float, float]]] = {}

    def ended(self, task: str, queue: str, *, seconds: float, wait_s: float, total_s: float) -> None:
        """An attempt has ended."""
        self._ended.setdefault((task, queue), []).append((seconds, wait_s, total_s))

    def settled(self, queue: str, states: Sequence[tuple[str, str]], refused: int) -> None:
        """A call has settled tasks: names and states."""
        known = ((task if task in self._known else UNKNOWN, state) for task, state in states)
        for (task, state), number in CounterOf(known).items():
            METRICS.emit(_BY_STATE[state], number, task, queue)
        if refused:
            METRICS.emit("conquiet_tasks_fenced_total", refused, queue)
        self.flush()

    def flush(self) -> None:
        """Observe the times of all attempts since the last call."""
        for labels, times in self._ended.items():
            METRICS.emit("conquiet_tasks_started_total", len(times), *labels)
            durations, waits, totals = zip(*times, strict=True)
            METRICS.observe_all("conquiet_tasks_duration_seconds", durations, *labels)
            METRICS.observe_all("conquiet_tasks_queue_wait_seconds", waits, *labels)
            METRICS.observe_all("conquiet_tasks_end_to_end_seconds", totals, *labels)
        self._ended.clear()
