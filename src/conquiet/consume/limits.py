"""DrainLimits: when a drain stops, and what a failed message means; every default of every drain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from conquiet.arguments import check_positive_int, check_positive_seconds

#: The most messages that one read asks for; also of a consumer that has no limits.
DEFAULT_BATCH_SIZE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """When a drain stops; `None` is no limit.

    Malformed entries count against none of these limits.
    """

    #: The most messages that one drain handles.
    max_messages: int | None = 1_000
    #: No message is begun after this time.
    max_duration_s: float | None = None
    #: How long there must be nothing to read for the drain to end; retries that wait do not count.
    idle_ms: int | None = 1_000
    #: How many failed messages end the drain: then the handler is broken, not its messages.
    max_failures: int | None = 10
    #: Plain streams: a message delivered more often than this becomes a dead letter instead of being handled
    #: once more. A topic has its `RetryPolicy.max_attempts`.
    max_deliveries: int | None = None
    #: "continue" goes on after a failed message. A plain stream's drain then ends with a `DrainError`, since
    #: they are still pending; a topic has scheduled them for a retry or made them dead letters.
    #: "raise" stops at the first failed message and raises its error, with the report as `drain_report`.
    on_error: Literal["raise", "continue"] = "continue"
    #: The most messages that one read asks for; slow handlers make it smaller.
    batch_size: int = DEFAULT_BATCH_SIZE
    #: Asked between messages.
    should_stop: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        check_positive_int("batch_size", self.batch_size)
        for name in ("max_messages", "idle_ms", "max_failures", "max_deliveries"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        if self.max_duration_s is not None:
            check_positive_seconds("max_duration_s", self.max_duration_s)
        if self.on_error not in ("raise", "continue"):
            raise ValueError(f"on_error must be 'raise' or 'continue', got {self.on_error!r}")
