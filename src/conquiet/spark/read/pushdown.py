"""Conditions of a query that are ranges of ids: on `id`, `timestamp` and `partition`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from conquiet.spark.entry_ids import HIGHEST, LOWEST, EntryId, IdRange, ms_of

_LAST_OF_MS = 2**64 - 1
_FIRST_13_DIGITS = 10**12
_ID = re.compile(r"\d{1,20}-\d{1,20}")


class Pushdown:
    """What the conditions of a query leave of a read; Spark still checks every condition itself."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        #: What there is of each entry, by the column: a field may have the name `id`, too.
        self._columns = columns
        self.within = IdRange()
        #: From conditions on ids as text; true where all ids have as many digits as those of our time.
        self.within_text = IdRange()
        self.partitions: frozenset[int] | None = None

    def take(self, conditions: Sequence[Filter]) -> None:
        """Narrow by each condition that is understood."""
        for condition in conditions:
            match condition:
                case EqualTo((name,), value):
                    self._take_values(self._columns.get(name), [value])
                case In((name,), values):
                    self._take_values(self._columns.get(name), values)
                case GreaterThan((name,), value) | GreaterThanOrEqual((name,), value):
                    self._take_bound(self._columns.get(name), value, _from)
                case LessThan((name,), value) | LessThanOrEqual((name,), value):
                    self._take_bound(self._columns.get(name), value, _until)

    def range_in(self, whole: IdRange) -> IdRange:
        """What is left of a stream whose entries are in `whole`."""
        # As text 9-0 comes after 10-0: a condition on texts is one on numbers only if all are equally long.
        is_usual = EntryId(_FIRST_13_DIGITS) <= whole.first and whole.last.ms < 10 * _FIRST_13_DIGITS
        return self.within.within(self.within_text) if is_usual else self.within

    def _take_values(self, column: str | None, values: Sequence[Any]) -> None:
        if column == "partition":
            kept = frozenset(values)
            self.partitions = kept if self.partitions is None else self.partitions & kept
        elif column == "id":
            ids = [EntryId.parse(one) for one in values if isinstance(one, str) and _ID.fullmatch(one)]
            if ids and len(ids) == len(values):
                self.within = self.within.within(IdRange(min(ids), max(ids)))
        elif column == "timestamp" and len(values) == 1:
            self._take_bound(column, values[0], lambda ms: _from(ms).within(_until(ms)))

    def _take_bound(self, column: str | None, value: Any, range_of: Callable[[int], IdRange]) -> None:
        if column == "timestamp" and isinstance(value, datetime) and ms_of(value) >= 0:
            self.within = self.within.within(range_of(ms_of(value)))
        elif column == "id":
            ms = str(value).partition("-")[0]
            if len(ms) == 13 and ms.isascii() and ms.isdigit() and int(ms) >= _FIRST_13_DIGITS:
                self.within_text = self.within_text.within(range_of(int(ms)))


def _from(ms: int) -> IdRange:
    return IdRange(EntryId(ms), HIGHEST)


def _until(ms: int) -> IdRange:
    return IdRange(LOWEST, EntryId(ms, _LAST_OF_MS))


class PushFilters:
    """The reader's `pushFilters`, for sessions with and without push-down.

    Spark refuses a reader that overrides the method while `spark.sql.python.filterPushdown.enabled` is
    false, its default. With the base method's function as its own, this one passes as not overridden: the
    read works either way, and is narrowed where the session allows it.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Sequence[Filter]], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._take(filters)
        return filters
