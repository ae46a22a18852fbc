"""Positions: one order over the entries of several streams, by time and then by partition."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_TEXT = re.compile(r"(\d{1,20})-(\d{1,20})(?:@(\d{1,9}))?")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """One entry of one partition; pages over several partitions begin behind the last one's position."""

    ms: int
    sequence: int
    #: `None` for every partition.
    partition: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position written as `1700000000000-0@3`, or without a partition.

        Raises:
            ValueError: it is neither.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"an entry id must look like 1700000000000-0 or 1700000000000-0@3, got {text!r}")
        ms, sequence, partition = match.groups()
        return cls(int(ms), int(sequence), None if partition is None else int(partition))

    @classmethod
    def of(cls, entry_id: bytes, partition: int) -> Self:
        ms, _, sequence = entry_id.partition(b"-")
        return cls(int(ms), int(sequence), partition)

    @property
    def entry_id(self) -> str:
        return f"{self.ms}-{self.sequence}"

    def start_in(self, partition: int) -> str:
        """Where XRANGE or XPENDING goes on in a partition, behind this position."""
        is_behind = self.partition is not None and partition > self.partition
        return self.entry_id if is_behind else f"({self.entry_id}"

    def end_in(self, partition: int) -> str:
        """Where XREVRANGE goes on in a partition, before this position."""
        is_before = self.partition is not None and partition < self.partition
        return self.entry_id if is_before else f"({self.entry_id}"

    def __str__(self) -> str:
        return f"{self.entry_id}@{self.partition}"
