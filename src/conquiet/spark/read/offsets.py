"""Where a streaming query is: an id in each stream, as Spark keeps it in its checkpoint."""

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


def from_json(kept: Mapping[str, Any]) -> dict[str, Offset]:
    """The offsets of all sources by their names, as Spark has kept them."""
    return {
        name: Offset(
            EntryId.parse(offset["last"]),
            offset["added"],
            tuple(map(EntryId.parse, offset["starts"].split(",") if offset["starts"] else [])),
        )
        for name, offset in kept.items()
    }


def to_json(offsets: Mapping[str, Offset]) -> dict[str, Any]:
    """All of them, as Spark can keep them."""
    return {
        name: {
            "last": str(offset.last),
            "added": offset.added,
            "starts": ",".join(map(str, offset.starts)),
        }
        for name, offset in sorted(offsets.items())
    }
