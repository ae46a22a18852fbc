"""The tasks of a read: which ranges of which streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql.datasource import InputPartition

from conquiet.queue.connection import Client
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.read.sampling import cut
from conquiet.spark.read.stream_info import StreamLook, average_bytes, look_at
from conquiet.spark.scripts import sample

#: A look at one place of a stream: no more than so many entries, and about so many bytes.
_SAMPLE_ENTRIES, _SAMPLE_BYTES = 64, 1 << 16


@dataclass
class Split(InputPartition):
    """What one task reads: a range of one stream that begins at an entry that was there."""

    stream: str
    partition: int
    first: str
    last: str


def split_stream(
    client: Client,
    stream: str,
    partition: int,
    range_in: Callable[[IdRange], IdRange],
    rows_per_split: int,
) -> list[Split]:
    """Divide what the stream has of a range; an empty list if it has nothing.

    Args:
        range_in: says what is wanted, given from where to where the stream has entries.
    """
    look = look_at(client, stream)
    wanted = range_in(look.whole).within(look.whole)
    starts = starts_in(client, stream, wanted, look, rows_per_split)
    return splits_from(stream, partition, starts, wanted.last)


def starts_in(
    client: Client, stream: str, wanted: IdRange, look: StreamLook, rows_per_split: int
) -> tuple[EntryId, ...]:
    """The first entry of each part of a range; none if there is nothing in it."""
    if wanted.is_empty:
        return ()
    [found] = sample(client, stream, [wanted.first], wanted.last, 1)
    if found is None:
        return ()
    if look.length <= rows_per_split:
        return (found[0],)
    count = max(2, min(_SAMPLE_ENTRIES, _SAMPLE_BYTES // average_bytes(client, stream, look.length)))
    look_into = partial(sample, client, stream, last=wanted.last, count=count)
    parts = cut(IdRange(found[0], wanted.last), look.length, rows_per_split, look_into)
    return tuple(part.first for part in parts)


def splits_from(stream: str, partition: int, starts: Sequence[EntryId], last: EntryId) -> list[Split]:
    """A split from each start to the next one."""
    ends = [*(start.previous() for start in starts[1:]), last]
    return [
        Split(stream, partition, str(start), str(end))
        for start, end in zip(starts, ends[: len(starts)], strict=True)
    ]


def range_of(split: Split) -> IdRange:
    """The ids of a split."""
    return IdRange(EntryId.parse(split.first), EntryId.parse(split.last))
