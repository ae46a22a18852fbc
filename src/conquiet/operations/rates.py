"""How fast a backlog moves: the difference of two looks; no Redis, no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One group of one topic or stream at one moment; without a group, the topic alone."""

    topic: str
    group: str | None
    #: By the server's clock.
    at_ms: int
    length: int
    #: Entries ever added, where the server counts them (Redis 7 and later).
    added: int | None
    lag: int | None = None
    pending: int = 0
    oldest_undelivered_age_ms: int | None = None
    oldest_pending_age_ms: int | None = None
    dead_letters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Messages per second between two looks; `None` is what they do not tell."""

    enqueued_per_s: float | None = None
    #: Delivered and settled.
    handled_per_s: float | None = None
    #: Until the backlog is gone at this pace; `None` also if it does not shrink.
    seconds_to_drain: float | None = None


def rates_between(earlier: Sample | None, later: Sample) -> Rates:
    """What happened from one look to the next."""
    if earlier is None or later.at_ms <= earlier.at_ms:
        return Rates()
    seconds = (later.at_ms - earlier.at_ms) / 1000
    enqueued = _added_since(earlier, later)
    if enqueued is None:
        return Rates()
    left_then, left_now = _left(earlier), _left(later)
    if left_then is None or left_now is None:
        return Rates(enqueued_per_s=enqueued / seconds)
    # What was there and what came, less what is left: it does not matter who handled it.
    handled = max(0, left_then + enqueued - left_now)
    shrinking = (left_then - left_now) / seconds
    return Rates(
        enqueued_per_s=enqueued / seconds,
        handled_per_s=handled / seconds,
        seconds_to_drain=left_now / shrinking if shrinking > 0 else None,
    )


def _added_since(earlier: Sample, later: Sample) -> int | None:
    if earlier.added is not None and later.added is not None:
        added = later.added - earlier.added
    else:
        added = later.length - earlier.length
    # The stream was trimmed, or deleted and made anew: the difference tells nothing.
    return added if added >= 0 else None


def _left(sample: Sample) -> int | None:
    return None if sample.group is None or sample.lag is None else sample.lag + sample.pending
