"""Loss: what a stream's mark says of entries that a failover has lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conquiet.queue.backlog import as_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Entries of one stream that were lost, as far as any process that survived knows."""

    stream: str
    #: The key of the record; without it, the loss is forgotten.
    mark: str
    #: Counts the losses of the stream.
    epoch: int
    #: The last entry before the loss. If it is not exact, some entries behind it may have survived.
    after: str
    is_exact: bool
    #: The last entry that is known to be lost.
    last: str
    #: At least so many.
    count: int
    seen_at_ms: int
    #: Who saw it first.
    seen_by: str


def losses_of(stream: str, mark: str, fields: Any) -> list[Loss]:
    """The losses in the fields of the mark, oldest first; what cannot be read is left out."""
    losses = []
    for name, text in as_mapping(fields).items():
        epoch = name.removeprefix("loss:")
        try:
            record = json.loads(text) if epoch != name and epoch.isdigit() else None
        except ValueError:
            continue
        if isinstance(record, Mapping):
            loss = Loss(
                stream=stream,
                mark=mark,
                epoch=int(epoch),
                after=str(record.get("after", "?")),
                is_exact=record.get("isExact") is True,
                last=str(record.get("last", "?")),
                count=max(1, _number(record, "lost"), _number(record, "sent")),
                seen_at_ms=_number(record, "seenAtMs"),
                seen_by=str(record.get("seenBy", "?")),
            )
            losses.append(loss)
    return sorted(losses, key=lambda loss: loss.epoch)


def _number(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    # NaN is in no interval.
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0
