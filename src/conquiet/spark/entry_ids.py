"""Entry ids as numbers: their order, the next and the previous one, and ranges of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

_LARGEST = 2**64 - 1
_ID = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?")


@dataclass(frozen=True, slots=True, order=True)
class EntryId:
    """One id of a stream: milliseconds, then a sequence within them."""

    ms: int
    sequence: int = 0

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """The id written as `1700000000000-0`."""
        ms, _, sequence = (text.decode() if isinstance(text, bytes) else text).partition("-")
        return cls(int(ms), int(sequence))

    def next(self) -> EntryId:
        """The smallest id above this one."""
        if self.sequence < _LARGEST:
            return EntryId(self.ms, self.sequence + 1)
        return EntryId(self.ms + 1, 0)

    def previous(self) -> EntryId:
        """The largest id below this one; 0-0 has none and stays."""
        if self.sequence:
            return EntryId(self.ms, self.sequence - 1)
        return EntryId(self.ms - 1, _LARGEST) if self.ms else self

    def __str__(self) -> str:
        return f"{self.ms}-{self.sequence}"


#: The last id of a stream that has had no entries yet.
ZERO = EntryId(0, 0)

#: Below and above every entry that Redis can have.
LOWEST = EntryId(0, 1)
HIGHEST = EntryId(_LARGEST, _LARGEST)


@dataclass(frozen=True, slots=True)
class IdRange:
    """Entries from `first` to `last`, both included."""

    first: EntryId = LOWEST
    last: EntryId = HIGHEST

    @property
    def is_empty(self) -> bool:
        return self.first > self.last

    def within(self, other: IdRange) -> IdRange:
        """What is in both."""
        return IdRange(max(self.first, other.first), min(self.last, other.last))


def first_id_of(option: str, text: str) -> EntryId:
    """The first id that an id, milliseconds since 1970, or an ISO 8601 time stands for."""
    ms, sequence = _moment(option, text)
    return EntryId(ms, 0 if sequence is None else sequence)


def last_id_of(option: str, text: str) -> EntryId:
    """The last id that an id, milliseconds since 1970, or an ISO 8601 time stands for."""
    ms, sequence = _moment(option, text)
    return EntryId(ms, _LARGEST if sequence is None else sequence)


def _moment(option: str, text: str) -> tuple[int, int | None]:
    match = _ID.fullmatch(text)
    if match is not None:
        ms, sequence = match.groups()
        return int(ms), None if sequence is None else int(sequence)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{option} must be an entry id, milliseconds since 1970 or an ISO 8601 time, got {text!r}"
        ) from None
    return ms_of(moment), None


def ms_of(moment: datetime) -> int:
    """Whole milliseconds since 1970, rounded down; a time without a zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
