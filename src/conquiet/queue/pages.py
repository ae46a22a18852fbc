"""EntryPages: a range of a stream page by page, each bounded by its bytes as the server reads them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError

from conquiet.errors import QueueError
from conquiet.queue.batch_size import BATCH_BYTES, FEW_MESSAGES
from conquiet.queue.connection import as_text
from conquiet.queue.message import RawEntry, pairs_of
from conquiet.queue.steps import Steps, command

_SCRIPT = files("conquiet.queue.scripts").joinpath("page.lua").read_bytes()


class IdsPage(NamedTuple):
    """Ids of entries, and how much is in them."""

    ids: list[str]
    size: int


class EntryPages:
    """Reads what is in a stream, for no group; made for one thread.

    The first page has few entries, each further one up to twice as many, and none any after `BATCH_BYTES`,
    also where tiny entries come before large ones. A user who may not run scripts on the stream gets ten at
    a time.
    """

    def __init__(self, stream: str | bytes, *, first: str = "-", last: str = "+", newest_first: bool = False):
        self._stream = stream
        self._command = "XREVRANGE" if newest_first else "XRANGE"
        self._ends = (last, first) if newest_first else (first, last)
        self._may_run_scripts = True
        self._most = FEW_MESSAGES
        #: Whether the last page was the end of the range.
        self.is_end = False

    def next(self, most: int) -> Steps[list[RawEntry]]:
        """The next page, of so many entries at the most; empty behind the last one."""
        entries, _ = yield from self._read(most, ids_only=False)
        if entries:
            self._move_behind(entries[-1][0])
        return entries

    def next_ids(self, most: int) -> Steps[IdsPage]:
        """As `next`, without what is in the entries."""
        names, size = yield from self._read(most, ids_only=True)
        if names:
            self._move_behind(names[-1])
        return IdsPage([as_text(name) for name in names], size)

    def _read(self, most: int, *, ids_only: bool) -> Steps[tuple[list[Any], int]]:
        count = min(most, self._most)
        self._most *= 2
        if self._may_run_scripts:
            arguments = (*self._ends, count, BATCH_BYTES, self._command, int(ids_only))
            try:
                found, size, is_end = yield command("EVAL", _SCRIPT, 1, self._stream, *arguments)
            except (NoPermissionError, QueueError) as error:
                if not isinstance(error, NoPermissionError) and not isinstance(
                    error.__cause__, NoPermissionError
                ):
                    raise
                self._may_run_scripts = False
            else:
                self.is_end = bool(is_end)
                return found, size
        count = min(count, FEW_MESSAGES)
        entries: Sequence[RawEntry] = yield command(self._command, self._stream, *self._ends, "COUNT", count)
        self.is_end = len(entries) < count
        sizes = (len(value) for _, fields in entries for _, value in pairs_of(fields))
        return ([name for name, _ in entries] if ids_only else [*entries]), sum(sizes)

    def _move_behind(self, entry_id: bytes | str) -> None:
        self._ends = (f"({as_text(entry_id)}", self._ends[1])
