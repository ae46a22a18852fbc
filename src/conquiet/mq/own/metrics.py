"""PartitionMetrics: what one owned partition counts and observes, emitted together with its settlements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from conquiet.consume.outcome import Settlement
from conquiet.mq.metrics import emit, observe_all


class PartitionMetrics:
    """The metrics of one partition for one group; one thread."""

    def __init__(self, labels: tuple[str, str, str]) -> None:
        self._labels = labels
        #: Of handled messages, not yet observed: together they cost a third of what each by itself would.
        self._handle_seconds: list[float] = []
        self._end_to_end_seconds: list[float] = []

    def count(self, name: str, amount: float = 1) -> None:
        """Count, or set, one metric of the partition."""
        emit(name, amount, *self._labels)

    def handled(self, seconds: float, end_to_end_s: float | None) -> None:
        """A handler has ended after so many seconds."""
        self._handle_seconds.append(seconds)
        if end_to_end_s is not None:
            self._end_to_end_seconds.append(end_to_end_s)

    def settled(self, settlements: Sequence[Settlement], seconds: float) -> None:
        """A call has settled these."""
        if not settlements:
            return
        self.count("conquiet_mq_settle_seconds", seconds)
        kinds = Counter(one.kind for one in settlements if not one.is_refused and one.kind != "begin")
        for kind, number in kinds.items():
            emit("conquiet_mq_settled_total", number, *self._labels, kind)
        refused = sum(one.is_refused for one in settlements)
        if refused:
            self.count("conquiet_mq_fenced_total", refused)

    def flush(self) -> None:
        """Observe the times of all messages since the last call."""
        if self._handle_seconds:
            self.count("conquiet_mq_consumed_total", len(self._handle_seconds))
            observe_all("conquiet_mq_handle_seconds", self._handle_seconds, *self._labels)
            observe_all("conquiet_mq_end_to_end_seconds", self._end_to_end_seconds, *self._labels)
            self._handle_seconds.clear()
            self._end_to_end_seconds.clear()
