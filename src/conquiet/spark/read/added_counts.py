"""How many entries were ever added to a stream up to a place in it: what tells lost entries from read ones.

Redis counts what was added and what is there. What was added up to a place is all that was added, less what
is there behind the place: entries that are gone by then count as added before it.
"""

from __future__ import annotations

from conquiet.queue.connection import Client
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.read.offsets import Offset
from conquiet.spark.read.stream_info import StreamLook, look_at
from conquiet.spark.scripts import walk

#: Entries that one call of the script walks over: the server does nothing else meanwhile.
_STEP, _STEPS = 500, 10

#: Counts that were spoilt by entries that somebody deleted meanwhile.
_MOST_TRIES = 5


def added_at_a_glance(look: StreamLook, place: EntryId) -> int | None:
    """Entries ever added up to `place` if that can be told without counting: outside of what is there."""
    if look.last_generated < place:
        return None
    if look.last is None or look.last <= place:
        return look.entries_added
    if look.first is None or look.first > place:
        return look.removed
    return None


def added_up_to(client: Client, stream: str, place: EntryId) -> int | None:
    """Entries ever added up to `place`; `None` if it cannot be known.

    It cannot before Redis 7, of a place that the stream has not come to, or while others keep deleting.
    """
    before = look_at(client, stream)
    for _ in range(_MOST_TRIES):
        if before.entries_added is None or before.last is None or not _is_inside(before, place):
            return added_at_a_glance(before, place)
        behind = _entries_in(client, stream, IdRange(place.next(), before.last))
        after = look_at(client, stream)
        if not _is_removed_behind(place, before, after):
            return before.entries_added - behind
        before = after
    return None


def added_after(client: Client, stream: str, start: Offset, end: EntryId, count: int) -> int | None:
    """Entries ever added up to `end`, which is `count` entries behind `start`."""
    look = look_at(client, stream)
    is_whole = look.first is not None and (look.first <= start.last or look.removed == start.added)
    if start.added is not None and is_whole and look.max_deleted <= start.last:
        return start.added + count
    # Nobody has counted up to the start, or single entries behind it were deleted.
    return added_up_to(client, stream, end)


def _entries_in(client: Client, stream: str, within: IdRange) -> int:
    count, first = 0, within.first
    while walked := walk(client, stream, IdRange(first, within.last), _STEPS, _STEP):
        count += sum(number for _, number in walked)
        first = walked[-1][0].next()
    return count


def _is_inside(look: StreamLook, place: EntryId) -> bool:
    return look.whole.first <= place < look.whole.last


def _is_removed_behind(place: EntryId, before: StreamLook, after: StreamLook) -> bool:
    if after.removed == before.removed:
        return False
    is_trimmed_before = after.first is not None and after.first <= place
    return not (is_trimmed_before and after.max_deleted == before.max_deleted)
