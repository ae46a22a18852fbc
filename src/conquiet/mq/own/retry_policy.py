"""RetryPolicy: whether and when a failed message is tried again; no Redis, no clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from conquiet.arguments import check_non_negative_int, check_positive_int
from conquiet.mq.envelope import MAX_RETRIES

Backoff = Literal["fixed", "exponential", "jitter"]

_LONGEST_MS = 100 * 366 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how soon, and after which exceptions.

    Examples:
        >>> policy = RetryPolicy(backoff="exponential", base_delay_ms=500, never_on=(KeyError,))
        >>> [policy.delay_ms(attempt) for attempt in (1, 2, 3)]
        [500, 1000, 2000]
    """

    #: Deliveries in all, the first one included; a worker that dies counts too.
    max_attempts: int = 5
    #: "fixed": the base each time. "exponential": doubling. "jitter": decorrelated, between the base and
    #: three times the last delay, so that messages that failed together do not come back together.
    backoff: Backoff = "jitter"
    #: The wait after the first attempt.
    base_delay_ms: int = 1_000
    #: The longest wait.
    max_delay_ms: int = 60_000
    #: Only these exceptions are retried; any other goes to the dead letters at once.
    retry_on: tuple[type[Exception], ...] = (Exception,)
    #: Never these, even if `retry_on` has a parent of theirs.
    never_on: tuple[type[Exception], ...] = ()
    #: Where jitter comes from; a seeded one gives the same delays again.
    random: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_positive_int("max_attempts", self.max_attempts)
        for name in ("base_delay_ms", "max_delay_ms"):
            check_non_negative_int(name, getattr(self, name))
            if getattr(self, name) > _LONGEST_MS:
                raise ValueError(f"{name} must be at most 100 years, got {getattr(self, name)!r}")
        for name in ("retry_on", "never_on"):
            kinds = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(
                isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds
            ):
                raise TypeError(f"{name} must be a tuple of exception classes, got {kinds!r}")
        if self.backoff not in ("fixed", "exponential", "jitter"):
            raise ValueError(f"backoff must be 'fixed', 'exponential' or 'jitter', got {self.backoff!r}")
        if not isinstance(self.random, random.Random):
            raise TypeError(f"random must be a random.Random, got {self.random!r}")
        if self.base_delay_ms > self.max_delay_ms:
            raise ValueError(
                f"base_delay_ms must lie between 0 and max_delay_ms={self.max_delay_ms!r}, "
                f"got {self.base_delay_ms!r}"
            )

    def is_retried(self, error: Exception) -> bool:
        """Whether this exception is one to try again after."""
        return isinstance(error, self.retry_on) and not isinstance(error, self.never_on)

    def is_exhausted(self, attempt: int, max_retries: int | None = None) -> bool:
        """Whether attempt number `attempt` was the last one; `max_retries` is the message's own limit."""
        # Bounded here too: other programs send messages as well.
        return attempt >= (self.max_attempts if max_retries is None else min(max_retries, MAX_RETRIES) + 1)

    def delay_ms(self, attempt: int, last_delay_ms: int = 0) -> int:
        """How long to wait after attempt number `attempt`, counted from 1."""
        match self.backoff:
            case "fixed":
                delay = self.base_delay_ms
            case "exponential":
                # Capped before it is computed: 2 ** 1000 is a number, but not a delay.
                delay = self.base_delay_ms * 2 ** min(attempt - 1, 40)
            case _:
                delay = self.random.randint(self.base_delay_ms, 3 * max(self.base_delay_ms, last_delay_ms))
        return min(delay, self.max_delay_ms)
