"""How much a streaming query has not read yet: for its progress, and to decide when a micro-batch begins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from conquiet.queue.connection import Client
from conquiet.spark.entry_ids import EntryId
from conquiet.spark.read.offsets import Offset
from conquiet.spark.read.sources import Source
from conquiet.spark.read.stream_info import StreamInfo, average_bytes
from conquiet.spark.scripts import sample

#: In what is reported to Spark: beside the offsets of streams, whose names are numbers or keys.
TOTALS = "conquiet"


def entries_behind(offset: Offset, info: StreamInfo) -> int | None:
    """How many entries of a stream are behind an offset; `None` if Redis does not know."""
    if info.last is None or info.last <= offset.last:
        return 0
    if info.entries_added is not None and offset.added is not None:
        # What was removed unread cannot be read any more.
        return max(0, min(info.entries_added - offset.added, info.length))
    return info.length if info.first is not None and info.first > offset.last else None


def backlog_of(
    client: Client, sources: Sequence[Source], ends: Mapping[str, Offset], infos: Mapping[str, StreamInfo]
) -> dict[str, Any]:
    """For each stream where it ends, how many entries are behind the micro-batch, how old the first is."""
    now_ms = time.time_ns() // 1_000_000
    report: dict[str, Any] = {}
    size = 0
    for source in sources:
        info = infos[source.name]
        offset = ends.get(source.name, Offset(EntryId(0, 0), 0))
        behind, age_ms = entries_behind(offset, info), 0
        if behind != 0 and info.last is not None:
            [first] = sample(client, source.stream, [offset.last.next()], info.last, 1)
            age_ms = 0 if first is None else max(0, now_ms - first[0].ms)
            size += (behind or 0) * average_bytes(client, source.stream, info.length)
        report[source.name] = {
            "last": str(info.last_generated),
            "added": info.entries_added,
            "rowsBehind": behind,
            "oldestAgeMs": age_ms,
        }
    rows = [one["rowsBehind"] for one in report.values()]
    totals = {
        "rowsBehind": None if None in rows else sum(rows),
        "maxRowsBehind": None if None in rows else max(rows, default=0),
        "oldestAgeMs": max((one["oldestAgeMs"] for one in report.values()), default=0),
        "bytesBehind": size,
    }
    return {**report, TOTALS: totals}
