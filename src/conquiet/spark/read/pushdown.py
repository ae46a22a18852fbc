"""Conditions of a query that are ranges of ids: on `id`, `timestamp` and `partition`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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

    def __init__(self) -> None:
        self.within = IdRange()
        #: From conditions on ids as text; holds where all ids have as many digits as those of our time.
        self.within_text = IdRange()
        self.partitions: frozenset[int] | None = None

    def take(self, conditions: Sequence[Filter]) -> None:
        """Narrow by each condition that is understood."""
        for condition in conditions:
            match condition:
                case EqualTo(("partition",), value):
                    self._keep_partitions({value})
                case In(("partition",), values):
                    self._keep_partitions(set(values))
                case EqualTo(("id",), value):
                    self._keep_ids([value])
                case In(("id",), values):
                    self._keep_ids(values)
                case GreaterThan(("id",), value) | GreaterThanOrEqual(("id",), value):
                    self._keep_text(value, lambda ms: IdRange(EntryId(ms), HIGHEST))
                case LessThan(("id",), value) | LessThanOrEqual(("id",), value):
                    self._keep_text(value, lambda ms: IdRange(LOWEST, EntryId(ms, _LAST_OF_MS)))
                case EqualTo(("timestamp",), value):
                    self._keep_times(value, lambda ms: IdRange(EntryId(ms), EntryId(ms, _LAST_OF_MS)))
                case GreaterThan(("timestamp",), value) | GreaterThanOrEqual(("timestamp",), value):
                    self._keep_times(value, lambda ms: IdRange(EntryId(ms), HIGHEST))
                case LessThan(("timestamp",), value) | LessThanOrEqual(("timestamp",), value):
                    self._keep_times(value, lambda ms: IdRange(LOWEST, EntryId(ms, _LAST_OF_MS)))

    def range_in(self, whole: IdRange) -> IdRange:
        """What is left of a stream whose entries are in `whole`."""
        # As text 9-0 comes after 10-0: what is said of ids as text holds for numbers only if all are as long.
        is_usual = EntryId(_FIRST_13_DIGITS) <= whole.first and whole.last.ms < 10 * _FIRST_13_DIGITS
        return self.within.within(self.within_text) if is_usual else self.within

    def _keep_partitions(self, numbers: set[Any]) -> None:
        kept = frozenset(numbers)
        self.partitions = kept if self.partitions is None else self.partitions & kept

    def _keep_ids(self, values: Sequence[Any]) -> None:
        if all(isinstance(value, str) and _ID.fullmatch(value) for value in values) and values:
            ids = [EntryId.parse(value) for value in values]
            self.within = self.within.within(IdRange(min(ids), max(ids)))

    def _keep_text(self, value: Any, narrowed: Callable[[int], IdRange]) -> None:
        ms = str(value).partition("-")[0]
        if len(ms) == 13 and ms.isascii() and ms.isdigit() and int(ms) >= _FIRST_13_DIGITS:
            self.within_text = self.within_text.within(narrowed(int(ms)))

    def _keep_times(self, value: Any, narrowed: Callable[[int], IdRange]) -> None:
        if isinstance(value, datetime) and ms_of(value) >= 0:
            self.within = self.within.within(narrowed(ms_of(value)))


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
