"""How far a streaming query can read on in one stream, and whether what it has not read is still there."""

from __future__ import annotations

from functools import partial

from conquiet.queue.connection import Client
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.errors import DataLossError, Loss
from conquiet.spark.read.added_counts import added_after
from conquiet.spark.read.offsets import Offset
from conquiet.spark.read.splits import starts_in
from conquiet.spark.read.stream_info import StreamLook
from conquiet.spark.scripts import sample, walk

#: Entries that one call of the script walks over: the server does nothing else meanwhile.
_STEP, _STEPS = 500, 10


def all_available(
    client: Client, stream: str, start: Offset, look: StreamLook, rows_per_split: int
) -> Offset:
    """The offset behind the last entry; `start` itself if there is nothing new.

    Args:
        look: what it says to have been added was added up to its last entry.
    """
    if look.last is None or look.last <= start.last:
        return start
    within = IdRange(start.last.next(), look.last)
    starts = starts_in(client, stream, within, look, rows_per_split)
    if not starts:
        return start
    return Offset(look.last, look.entries_added, starts)


def at_most(
    client: Client, stream: str, start: Offset, last: EntryId, rows: int, rows_per_split: int
) -> tuple[Offset, int]:
    """The offset up to `rows` entries further, no further than `last`, and how many entries that is."""
    starts: list[EntryId] = []
    end, count, in_split = start.last, 0, 0
    while count < rows and end < last:
        size = min(_STEP, rows - count)
        if not in_split:
            [found] = sample(client, stream, [end.next()], last, 1)
            if found is None:
                break
            starts.append(found[0])
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
    return Offset(end, added_after(client, stream, start, end, count), tuple(starts)), count


def check_nothing_lost(stream: str, start: Offset, look: StreamLook) -> None:
    """Refuse to go on if entries behind `start` were removed, or if the stream is another one by now.

    Entries up to `start` may go; how many were ever added up to there, and how many are gone by now, tells
    whether more are gone than that. Redis before 7 counts neither: there, only what a task misses is seen.

    Raises:
        DataLossError: with the gap.
    """
    before = look.first if look.first is not None else look.last_generated.next()
    loss = partial(DataLossError, stream=stream, after=str(start.last), before=str(before))
    if _is_another_stream(start, look):
        raise loss(how=Loss.ANOTHER_STREAM)
    if not look.removed or (look.first is not None and look.first <= start.last):
        # Trimming removes from the front, and the front is still there: somebody deleted single entries.
        return
    if start.added is None:
        if look.last_generated > start.last:
            raise loss(how=Loss.REMOVED if look.first is None else Loss.PERHAPS_REMOVED)
    elif look.removed > start.added:
        raise loss(at_most=look.removed - start.added)


def _is_another_stream(start: Offset, look: StreamLook) -> bool:
    if start.added is None and not start.starts:
        # Nobody has been there yet: an id or a time that was given may be one that is to come.
        return False
    if look.last_generated < start.last:
        return True
    if start.added is None or look.entries_added is None or look.removed is None:
        return False
    # With nothing left up to the start, all that was added up to there is among what was removed.
    is_past = look.first is not None and look.first > start.last
    return look.entries_added < start.added or (is_past and look.removed < start.added)
