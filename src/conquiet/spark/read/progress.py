"""How far a streaming query can read on in one stream, and whether what it has not read is still there.

Redis counts what was added and what is there. What was added up to an id is all that was added, less what is
there behind the id: entries that were removed by then count as added before it.
"""

from __future__ import annotations

from functools import partial

from conquiet.queue.connection import Client
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.errors import DataLossError, Loss
from conquiet.spark.read.offsets import Offset
from conquiet.spark.read.splits import starts_in
from conquiet.spark.read.stream_info import StreamInfo, read_info
from conquiet.spark.scripts import sample, walk

#: Entries that one call of the script walks over: the server does nothing else meanwhile.
_STEP, _STEPS = 500, 10

#: So many entries are counted for each one of a batch: others may be deleted before each batch.
_COUNTED_PER_ROW = 4

#: Counts that fail because entries are deleted meanwhile.
_MOST_TRIES = 5


def all_available(
    client: Client, stream: str, start: Offset, info: StreamInfo, rows_per_split: int, most: int
) -> Offset:
    """The offset behind the last entry; `start` itself if there is nothing new.

    Args:
        info: its `entries_added` were added up to its last entry.
        most: how many entries are behind `start`, at most.
    """
    if info.last is None or info.last <= start.last:
        return start
    within = IdRange(start.last.next(), info.last)
    starts = starts_in(client, stream, within, info, rows_per_split, most)
    return Offset(info.last, info.entries_added, starts) if starts else start


def at_most(
    client: Client,
    stream: str,
    start: Offset,
    last: EntryId,
    rows: int,
    rows_per_split: int,
    removed: int | None = None,
) -> tuple[Offset, int]:
    """The offset up to `rows` entries further, no further than `last`, and how many entries that is.

    Args:
        removed: how many entries had been removed when `start` was counted, if that is known.
    """
    starts: list[EntryId] = []
    end, count, in_split = start.last, 0, 0
    while count < rows and end < last:
        size = min(_STEP, rows - count)
        if not in_split:
            [first] = sample(client, stream, [end.next()], last, 1)
            if first is None:
                break
            starts.append(first[0])
        steps = max(1, min(_STEPS, (rows - count) // size, (rows_per_split - in_split) // size))
        walked = walk(client, stream, IdRange(end.next(), last), steps, size)
        if not walked:
            break
        end, number = walked[-1][0], sum(entries for _, entries in walked)
        count, in_split = count + number, in_split + number
        if in_split >= rows_per_split:
            in_split = 0
    if not count:
        return start, 0
    return Offset(end, _added_after(client, stream, start, end, count, removed), tuple(starts)), count


def check_nothing_lost(stream: str, start: Offset, info: StreamInfo) -> None:
    """Refuse to go on if entries behind `start` were removed, or if the stream is another one by now.

    Entries up to `start` may be removed: how many were ever added up to there, and how many are removed by
    now, shows whether more are. Redis before 7 counts neither: there, only what a task misses is noticed.

    Raises:
        DataLossError: with the gap.
    """
    before = info.first if info.first is not None else info.last_generated.next()
    loss = partial(DataLossError, stream=stream, after=str(start.last), before=str(before))
    if _is_another_stream(start, info):
        raise loss(how=Loss.ANOTHER_STREAM)
    if not info.removed or (info.first is not None and info.first <= start.last):
        # Trimming removes from the front, and the front is still there: single entries were deleted.
        return
    if start.added is None:
        if info.last_generated > start.last:
            raise loss(how=Loss.REMOVED if info.first is None else Loss.PERHAPS_REMOVED)
    elif info.removed > start.added:
        raise loss(at_most=info.removed - start.added)


def _added_after(
    client: Client, stream: str, start: Offset, end: EntryId, count: int, removed: int | None
) -> int | None:
    """Entries ever added up to `end`, which is `count` entries behind `start`; `None` if it cannot be known.

    It cannot before Redis 7, of an id that the stream has not come to, or while others keep deleting.
    """
    before = read_info(client, stream)
    is_whole = before.first is not None and (before.first <= start.last or before.removed == start.added)
    # With nothing removed since the start was counted, what is between is what was added between: without
    # this, each batch up to an entry that was deleted would count all that are behind it.
    is_as_before = removed is not None and before.removed == removed
    if start.added is not None and (is_as_before or (is_whole and before.max_deleted <= start.last)):
        return start.added + count
    # What was added up to the start is not known, or single entries behind it were deleted.
    most = None if removed is None or start.added is None else max(_STEPS * _STEP, _COUNTED_PER_ROW * count)
    for _ in range(_MOST_TRIES):
        whole = before.whole
        if before.entries_added is None or before.removed is None or not whole.first <= end < whole.last:
            return before.added_up_to(end)
        behind = _number_in(client, stream, IdRange(end.next(), whole.last), most)
        there = None if behind is not None else _number_in(client, stream, IdRange(whole.first, end), most)
        if behind is None and there is None:
            # Both are long. What was removed meanwhile counts as deleted behind the start: then none of the
            # entries up to `end` is ever taken for a loss.
            return (start.added or 0) + count + before.removed - (removed or 0)
        after = read_info(client, stream)
        is_removed_before = behind is not None and after.first is not None and after.first <= end
        if after.removed == before.removed or (is_removed_before and after.max_deleted == before.max_deleted):
            return before.removed + there if there is not None else before.entries_added - (behind or 0)
        before = after
    return None


def _number_in(client: Client, stream: str, within: IdRange, most: int | None) -> int | None:
    """How many entries there are in a range; `None` if more than `most`."""
    number, first = 0, within.first
    while walked := walk(client, stream, IdRange(first, within.last), _STEPS, _STEP):
        number += sum(entries for _, entries in walked)
        first = walked[-1][0].next()
        if most is not None and number >= most:
            return None
    return number


def _is_another_stream(start: Offset, info: StreamInfo) -> bool:
    if start.added is None and not start.starts:
        # Nothing was read yet: an id or a time that was given may be one that is to come.
        return False
    if info.last_generated < start.last:
        return True
    if start.added is None or info.entries_added is None or info.removed is None:
        return False
    # With nothing left up to the start, all that was added up to there is among what was removed.
    is_past = info.first is not None and info.first > start.last
    return info.entries_added < start.added or (is_past and info.removed < start.added)
