"""DrainLimits: when a drain stops, and what it does about a failed message; the defaults of every drain."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

from conquiet.arguments import check_positive_int, check_positive_seconds

#: The most messages that one read asks for; also of a consumer that has no limits.
DEFAULT_BATCH_SIZE = 100


#: What keeps its order while several messages are handled at once: see `DrainLimits.order_by`.
OrderBy = str | Callable[[Any], Hashable] | Literal[False]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """When a drain stops, and how many messages it handles at once; `None` is no limit.

    Malformed entries count against none of these limits.

    Examples:
        >>> limits = DrainLimits(max_messages=500, max_duration_s=50, max_deliveries=5)
        >>> limits.idle_ms  # the default
        1000
    """

    #: The most messages that one drain handles.
    max_messages: int | None = 1_000
    #: No message is started after this time; a running handler is not interrupted.
    max_duration_s: float | None = None
    #: The drain ends after this long without a message to read; retries that are not due do not keep it.
    idle_ms: int | None = 1_000
    #: Attempts that ended in an error, a `Retry` or a `DeadLetter` before the drain stops: then the handler
    #: is broken, not its messages.
    max_failures: int | None = 10
    #: Plain streams: a message delivered more often than this becomes a dead letter instead of being handled
    #: once more. A topic has its `RetryPolicy.max_attempts`.
    max_deliveries: int | None = None
    #: Plain streams: first handle what is pending at consumers whose drain has died, by its heartbeat.
    take_over_dead: bool = True
    #: "continue" goes on after a failed message. A plain stream's drain then ends with a `DrainError`, since
    #: they are still pending; a topic has scheduled them for a retry or made them dead letters.
    #: "raise" stops at the first failed message and raises its error, with the report as `drain_report`.
    on_error: Literal["raise", "continue"] = "continue"
    #: How many messages are handled at once, each in a thread, a connection and a transaction of its own.
    #: A limit that is reached, or a failure that stops the drain, lets those that are in handlers end.
    concurrency: int = 1
    #: With more than one: messages of one key are handled one after the other, in order. A string names a
    #: field of the payload, a function is called with the message (`None`: this one has no order). `False`:
    #: there is no order at all. `None`: a topic keeps the order of its keys; a plain stream needs a choice.
    order_by: OrderBy | None = None
    #: The most messages that one read asks for, and of a batch handler those of one transaction. Fewer come
    #: if they are large: a batch has about 8 MiB at most (`BATCH_BYTES`), or one message. In a plain stream
    #: the size of the last messages and the speed of the handler decide how many the next read asks for: 10
    #: at first, and no more of what was delivered before; for a batch handler only their size.
    batch_size: int = DEFAULT_BATCH_SIZE
    #: Called between messages; the drain stops when it returns true.
    should_stop: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        check_positive_int("batch_size", self.batch_size)
        check_positive_int("concurrency", self.concurrency)
        check_order_by(self.order_by)
        for name in ("max_messages", "idle_ms", "max_failures", "max_deliveries"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        if self.max_duration_s is not None:
            check_positive_seconds("max_duration_s", self.max_duration_s)
        if self.on_error not in ("raise", "continue"):
            raise ValueError(f"on_error must be 'raise' or 'continue', got {self.on_error!r}")


def check_limits(limits: object) -> None:
    """Refuse what is no `DrainLimits`."""
    if not isinstance(limits, DrainLimits):
        remedy = f": write DrainLimits(max_messages={limits})" if type(limits) is int else ""
        raise TypeError(f"limits must be a DrainLimits, got {limits!r:.100}{remedy}")


def check_order_by(order_by: object) -> None:
    """Refuse what cannot name an order."""
    is_name = isinstance(order_by, str) and order_by
    if not (order_by is None or order_by is False or is_name or callable(order_by)):
        raise ValueError(f"order_by must be the name of a field, a function or False, got {order_by!r}")
