"""What becomes of a message: what its handler may answer, and the settlement that follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SettlementKind = Literal["ack", "retry", "requeue", "dead_letter", "hand_back", "begin", "leave"]


@dataclass(frozen=True, slots=True)
class Ack:
    """Done: as if the handler had returned nothing.

    Examples:
        >>> def bill(msg, session):
        ...     return Ack()  # the same as returning nothing
    """


@dataclass(frozen=True, slots=True)
class Retry:
    """Again later; what this handling wrote to the database is rolled back.

    A topic schedules it; in a plain stream the message stays pending, as after an error.

    Examples:
        >>> def ship(msg, session):
        ...     return Retry(delay_ms=60_000, reason="no courier yet")
    """

    #: `None` leaves the delay to the retry policy.
    delay_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Move the message to the dead letters; what this handling wrote to the database is rolled back.

    Examples:
        >>> def refund(msg, session):
        ...     return DeadLetter("the order is unknown")
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """The inbox has it from an earlier delivery: acked without its handler."""


#: What a handler may return.
Answer = Ack | Retry | DeadLetter
#: What came of one handling that raised nothing.
Outcome = Answer | Skipped


# Not frozen, as one is made for every message: that would double what it costs.
@dataclass(slots=True)
class Settlement:
    """What is done with one entry: the two arguments are those of its kind.

    - ack: done.
    - retry: delay in ms, failure record; stays pending until it is due.
    - requeue: delay in ms, item; a copy is added later, this entry is acked.
    - dead_letter: the dead letter; moved there, this entry is acked.
    - hand_back: delivery count to set; not begun, free for others at once.
    - begin: about to be handled, its delivery is counted now.
    - leave: stays pending as it is.
    """

    kind: SettlementKind
    entry_id: str
    delivery_count: int
    first: str | int | bytes = ""
    second: str | bytes = ""
    #: Set by the channel: it has a large message in it or in its error, and is settled at once.
    is_large: bool = field(default=False, compare=False)
    #: Set by the channel: the entry was no longer this consumer's, and nothing was done with it.
    is_refused: bool = False
    #: Set by the channel: the server has answered, so that it must not be settled again.
    is_done: bool = field(default=False, compare=False)
    #: The name of a report's count.
    outcome: str = field(default="", compare=False)
    #: Of a dead letter without an error: why.
    reason: str = field(default="", compare=False)
    #: What the handler raised, if it did.
    error: Exception | None = field(default=None, repr=False, compare=False)
