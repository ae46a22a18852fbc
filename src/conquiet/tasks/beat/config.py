"""BeatConfig: how a beat runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from conquiet.arguments import check_name, check_positive_int, check_positive_seconds
from conquiet.queue import unique_consumer_name


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatConfig:
    """How a beat runs.

    Examples:
        >>> config = BeatConfig(lease_ttl_s=30, poll_s=0.5)
        >>> beat = Beat(app, config)
    """

    #: No other beat has it; host and process by default.
    name: str = field(default_factory=lambda: unique_consumer_name("beat"))
    #: A leader that is silent for so long is replaced by another beat.
    lease_ttl_s: float = 10.0
    #: A beat asks at least so often: whether it leads now, and for schedules that are new.
    poll_s: float = 1.0
    #: Schedules that are claimed in one round trip.
    batch_size: int = 100
    #: What cannot be claimed or delivered is tried again after so long.
    retry_s: float = 5.0
    #: With so many occurrences that are not delivered a schedule is not claimed further: it stays due.
    max_undelivered: int = 100

    def __post_init__(self) -> None:
        check_name("name", self.name)
        for name in ("lease_ttl_s", "poll_s", "retry_s"):
            check_positive_seconds(name, getattr(self, name))
        check_positive_int("batch_size", self.batch_size)
        check_positive_int("max_undelivered", self.max_undelivered)
        if self.poll_s * 2 > self.lease_ttl_s:
            raise ValueError(
                f"lease_ttl_s must be at least twice poll_s, got {self.lease_ttl_s:g} and {self.poll_s:g}"
            )
