"""Where a streaming query is: a place in each stream, as Spark keeps it in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conquiet.spark.entry_ids import EntryId


@dataclass(frozen=True, slots=True)
class Offset:
    """Everything up to `last` in one partition has been read."""

    last: EntryId
    #: How many entries had ever been added up to there; `None` if unknown.
    added: int | None = None
    #: First ids of the ranges into which the batch that ends here is divided: a replay must divide it alike.
    starts: tuple[EntryId, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As Spark can keep it."""
        return {"last": str(self.last), "added": self.added, "starts": ",".join(map(str, self.starts))}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Offset:
        """As Spark has kept it."""
        starts = kept["starts"].split(",") if kept["starts"] else []
        return cls(EntryId.parse(kept["last"]), kept["added"], tuple(map(EntryId.parse, starts)))


def offsets_of(kept: Mapping[str, Any]) -> dict[int, Offset]:
    """The offsets of all partitions."""
    return {int(partition): Offset.of(offset) for partition, offset in kept.items()}


def to_json(offsets: Mapping[int, Offset]) -> dict[str, Any]:
    """All partitions, as Spark can keep them."""
    return {str(partition): offset.to_json() for partition, offset in sorted(offsets.items())}
