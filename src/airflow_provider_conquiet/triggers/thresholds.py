"""Thresholds: from which backlog on somebody must be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conquiet import BacklogStats

#: How many entries are counted where the server does not know the lag.
_COUNT_LIMIT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Any one that is given and reached is enough; pending messages count where `min_pending` is given."""

    #: Messages that the group has not been given yet.
    min_lag: int | None = 1
    #: Messages delivered and not acked.
    min_pending: int | None = None
    #: Seconds since the oldest message that counts was enqueued.
    min_age_s: float | None = None

    def __post_init__(self) -> None:
        given = {
            name: value
            for name in ("min_lag", "min_pending", "min_age_s")
            if (value := getattr(self, name)) is not None
        }
        if not given:
            raise ValueError("give at least one of min_lag, min_pending and min_age_s")
        for name, value in given.items():
            kinds = (int, float) if name == "min_age_s" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
                raise ValueError(f"{name} must be a positive number, got {value!r}")

    @property
    def count_limit(self) -> int:
        """How far a look must count so that an unknown lag certainly reaches `min_lag`."""
        return max(_COUNT_LIMIT, self.min_lag or 0)

    def are_reached_by(self, backlog: Backlog) -> bool:
        """Whether somebody must be told."""
        if self.min_lag is not None and (backlog.lag is None or backlog.lag >= self.min_lag):
            return True
        if self.min_pending is not None and backlog.pending >= self.min_pending:
            return True
        age_ms = self._age_ms(backlog)
        return self.min_age_s is not None and age_ms is not None and age_ms >= self.min_age_s * 1000

    def event_of(self, backlog: Backlog) -> dict[str, Any]:
        """What an event or an XCom says of it: names and counts, never payloads."""
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
    """What a group has before it in one stream, or in all partitions of a topic."""

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


def stream_or_topic(stream: str | None, topic: str | None) -> tuple[str, str]:
    """Which of the two was given, as ("stream" | "topic", its name)."""
    if (stream is None) == (topic is None):
        raise ValueError(f"give either a stream or a topic, got stream={stream!r} and topic={topic!r}")
    return ("stream", stream) if stream is not None else ("topic", str(topic))


def _oldest(ages: Any) -> int | None:
    return max((age for age in ages if age is not None), default=None)
