"""Thresholds: which backlog rings the doorbell or ends a wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from conquiet import BacklogStats

#: How many entries are counted where the server does not know the lag.
_COUNT_LIMIT = 1_000


class ThresholdArguments(TypedDict, total=False):
    """The arguments of `Thresholds`, for what takes them too."""

    min_lag: int | None
    min_pending: int | None
    min_age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Any one that is given and reached is enough; pending messages count where `min_pending` is given."""

    #: Messages that were not delivered to the group yet.
    min_lag: int | None = 1
    #: Messages delivered and not acked.
    min_pending: int | None = None
    #: Seconds since the oldest message that counts was enqueued.
    min_age_s: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise ValueError("give at least one of min_lag, min_pending and min_age_s")
        for name, value in given.items():
            kinds = (int, float) if name == "min_age_s" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
                raise ValueError(f"{name} must be a positive number, got {value!r}")

    def as_arguments(self) -> ThresholdArguments:
        """As keyword arguments."""
        return {"min_lag": self.min_lag, "min_pending": self.min_pending, "min_age_s": self.min_age_s}

    @property
    def count_limit(self) -> int:
        """How far entries must be counted so that an unknown lag certainly reaches `min_lag`."""
        return max(_COUNT_LIMIT, self.min_lag or 0)

    def are_reached_by(self, backlog: Backlog) -> bool:
        """Whether any threshold is reached."""
        if self.min_lag is not None and (backlog.lag is None or backlog.lag >= self.min_lag):
            return True
        if self.min_pending is not None and backlog.pending >= self.min_pending:
            return True
        age_ms = self._age_ms(backlog)
        return self.min_age_s is not None and age_ms is not None and age_ms >= self.min_age_s * 1000

    def event_of(self, backlog: Backlog) -> dict[str, Any]:
        """The event or XCom: names and counts, never payloads."""
        return {
            backlog.kind: backlog.name,
            "group": backlog.group,
            "lag": backlog.lag,
            "pending": backlog.pending,
            "oldest_age_ms": self._age_ms(backlog),
        }

    def _age_ms(self, backlog: Backlog) -> int | None:
        ages = [backlog.oldest_undelivered_age_ms]
        if self.min_pending is not None:
            ages.append(backlog.oldest_pending_age_ms)
        return max((age for age in ages if age is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The backlog of a group in one stream, or in all partitions of a topic."""

    #: "stream" or "topic".
    kind: str
    name: str
    group: str
    #: `None`: too many to count, and the server does not know.
    lag: int | None
    pending: int
    oldest_undelivered_age_ms: int | None
    oldest_pending_age_ms: int | None

    @classmethod
    def of(cls, kind: str, name: str, group: str, parts: Sequence[BacklogStats]) -> Backlog:
        """The sum over the streams."""
        lags = [part.lag for part in parts]
        return cls(
            kind=kind,
            name=name,
            group=group,
            lag=None if None in lags else sum(lag for lag in lags if lag is not None),
            pending=sum(part.pending for part in parts),
            oldest_undelivered_age_ms=_oldest(part.oldest_undelivered_age_ms for part in parts),
            oldest_pending_age_ms=_oldest(part.oldest_pending_age_ms for part in parts),
        )


def _oldest(ages: Any) -> int | None:
    return max((age for age in ages if age is not None), default=None)
