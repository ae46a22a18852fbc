"""What a handler may answer: done, again later, or never again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ack:
    """Done: as if the handler had returned nothing."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Again later; what this handling wrote to the database is rolled back."""

    #: `None` leaves the delay to the retry policy.
    delay_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Never again by itself; what this handling wrote to the database is rolled back."""

    reason: str


Outcome = Ack | Retry | DeadLetter
