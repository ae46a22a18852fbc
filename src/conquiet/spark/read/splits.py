"""The tasks of a read: which ranges of which streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql.datasource import InputPartition

from conquiet.queue.connection import Client
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.read.cuts import cut
from conquiet.spark.read.sources import Source
from conquiet.spark.read.stream_info import StreamInfo, average_bytes
from conquiet.spark.scripts import sample

#: One sample: no more than so many entries, and about so many bytes.
_SAMPLE_ENTRIES, _SAMPLE_BYTES = 64, 1 << 16


@dataclass
class Split(InputPartition):
    """What one task reads: a range of one stream that begins at an entry that was there."""

    stream: str
    partition: int
    first: str
    last: str
    #: The topic, or the stream itself.
    place: str = ""

    @property
    def range(self) -> IdRange:
        return IdRange(EntryId.parse(self.first), EntryId.parse(self.last))


def starts_in(
    client: Client,
    stream: str,
    wanted: IdRange,
    info: StreamInfo,
    rows_per_split: int,
    most: int,
    at_least: int = 1,
) -> tuple[EntryId, ...]:
    """The first entry of each part of a range; none if there is nothing in it.

    Args:
        most: how many entries are in it, at most.
        at_least: about so many parts, if there are as many entries.
    """
    if wanted.is_empty:
        return ()
    [first] = sample(client, stream, [wanted.first], wanted.last, 1)
    if first is None:
        return ()
    if most <= rows_per_split and at_least == 1:
        return (first[0],)
    count = max(2, min(_SAMPLE_ENTRIES, _SAMPLE_BYTES // average_bytes(client, stream, info.length)))
    sampler = partial(sample, client, stream, last=wanted.last, count=count)
    # What Redis has counted behind an offset is less than the whole stream.
    is_exact = most < info.length or wanted.within(info.whole) == info.whole
    within = IdRange(first[0], wanted.last)
    parts = cut(within, most, rows_per_split, sampler, at_least=at_least, is_exact=is_exact)
    return tuple(part.first for part in parts)


def rows_per_split(limit: int, entries: int, min_partitions: int) -> int:
    """How many entries a task gets for so many tasks at least; `limit` at most."""
    return max(1, min(limit, entries // min_partitions))


def splits_from(source: Source, starts: Sequence[EntryId], last: EntryId) -> list[Split]:
    """A split from each start to the next one."""
    ends = [*(start.previous() for start in starts[1:]), last]
    return [
        Split(source.stream, source.partition, str(start), str(end), source.place)
        for start, end in zip(starts, ends[: len(starts)], strict=True)
    ]
