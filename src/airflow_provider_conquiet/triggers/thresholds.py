"""Thresholds: which backlog rings the doorbell or ends a wait."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from conquiet import BacklogStats
from conquiet.queue.backlog import COUNT_LIMIT


class ThresholdArguments(TypedDict, total=False):
    """The arguments of `Thresholds`, for what takes them too."""

    min_lag: int | None
    min_pending: int | None
    min_age_s: float | None
    min_idle_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Any one that is given and reached is enough; pending messages count where `min_pending` is given."""

    #: Messages that were not delivered to the group yet.
    min_lag: int | None = 1
    #: Messages delivered and not acked.
    min_pending: int | None = None
    #: Seconds since the oldest message that counts was enqueued.
    min_age_s: float | None = None
    #: Seconds since a consumer that has something pending was last seen: it died, or has handed it back.
    min_idle_s: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise ValueError("give at least one of min_lag, min_pending, min_age_s and min_idle_s")
        for name, value in given.items():
            kinds = (int, float) if name.endswith("_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
                raise ValueError(f"{name} must be a positive number, got {value!r}")

    @property
    def count_limit(self) -> int:
        """How far entries must be counted so that a lag that is still unknown is above `min_lag`."""
        return max(COUNT_LIMIT, self.min_lag or 0)

    @property
    def counts_pending(self) -> bool:
        """Whether messages that were delivered and not acked count."""
        return self.min_pending is not None or self.min_idle_s is not None

    def are_reached_by(self, backlog: BacklogStats) -> bool:
        if self.min_lag is not None and (backlog.lag is None or backlog.lag >= self.min_lag):
            return True
        if self.min_pending is not None and backlog.pending >= self.min_pending:
            return True
        if self.min_idle_s is not None:
            idle_ms = [one.idle_ms for one in backlog.consumers if one.pending]
            if idle_ms and max(idle_ms) >= self.min_idle_s * 1000:
                return True
        age_ms = self._age_ms(backlog)
        return self.min_age_s is not None and age_ms is not None and age_ms >= self.min_age_s * 1000

    def event_of(self, kind: str, backlog: BacklogStats) -> dict[str, Any]:
        """The event or XCom of a stream or topic: names and counts, never payloads."""
        return {
            kind: backlog.stream,
            "group": backlog.group,
            "lag": backlog.lag,
            "pending": backlog.pending,
            "oldest_age_ms": self._age_ms(backlog),
        }

    def _age_ms(self, backlog: BacklogStats) -> int | None:
        ages = [backlog.oldest_undelivered_age_ms]
        if self.min_pending is not None:
            ages.append(backlog.oldest_pending_age_ms)
        return max((age for age in ages if age is not None), default=None)
