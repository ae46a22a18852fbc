"""Entries of any fields as the rows of a query: each field a column of its type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from conquiet.errors import MalformedEntry
from conquiet.spark.columns import ALL_FIELDS, HEADERS, PROBLEM, Columns
from conquiet.spark.entry_ids import ms_of
from conquiet.spark.errors import MalformedRowsError
from conquiet.spark.read.rows import column_of_entries
from conquiet.spark.read.splits import Split
from conquiet.spark.wire.replies import Entries

#: What is wrong with an entry, by its index.
_Problems = dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRowMaker:
    """Makes the batches of one split of entries with any fields."""

    split: Split
    columns: Columns
    keeps_malformed: bool
    schema: pa.Schema

    def batch(self, entries: Entries) -> pa.RecordBatch:
        """All entries in order; a field that an entry does not have is null, of several the last one counts.

        Raises:
            MalformedRowsError: a value is not of its column's type, and such are not kept.
        """
        by_name = [_by_name(entries.fields_at(index)) for index in range(len(entries))]
        arrays: dict[str, pa.Array] = {}
        problems: _Problems = {}
        if self.columns.are_guessed and "data" not in self.schema.names:
            reason = "it has the field `data` alone, which is not asked for; if that is meant, give `fields`"
            problems |= {index: reason for index, fields in enumerate(by_name) if fields.keys() == {b"data"}}
        for field in self.schema:
            of_entry = self.columns.of_entries.get(field.name)
            if of_entry is not None:
                arrays[field.name] = column_of_entries(of_entry, entries, self.split, field.type)
            elif field.name == ALL_FIELDS.name and field.type == HEADERS:
                arrays[field.name] = _all_fields(by_name, problems)
            elif field.name != PROBLEM:
                name = field.name.encode()
                values = [fields.get(name) for fields in by_name]
                arrays[field.name] = typed_column(field.name, values, field.type, problems)
        if problems and not self.keeps_malformed:
            raise MalformedRowsError(
                stream=self.split.stream,
                entries=[_malformed(entries, *one) for one in sorted(problems.items())],
            )
        if PROBLEM in self.schema.names and PROBLEM not in arrays:
            texts = [problems.get(index) for index in range(len(entries))]
            arrays[PROBLEM] = pa.array(texts, pa.string())
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)


def typed_column(
    name: str, values: Sequence[bytes | None], kind: pa.DataType, problems: _Problems
) -> pa.Array:
    """Values of one field as a column; one that is not of the type is null, and noted among the problems."""
    if pa.types.is_binary(kind):
        return pa.array(values, pa.binary())
    convert = _converter(kind)
    try:
        return convert(pa.array(values, pa.binary()).cast(pa.string()))
    except (pa.ArrowInvalid, ValueError, OverflowError):
        pass
    # Some value does not fit: one by one.
    kept: list[Any] = []
    for index, value in enumerate(values):
        try:
            kept.append(convert(pa.array([value], pa.binary()).cast(pa.string()))[0].as_py())
        except (pa.ArrowInvalid, ValueError, OverflowError):
            problems.setdefault(index, f"field {name!r} is not of type {kind}: {value!r:.100}")
            kept.append(None)
    return pa.array(kept, kind)


def _converter(kind: pa.DataType) -> Callable[[pa.StringArray], pa.Array]:
    if pa.types.is_timestamp(kind):
        # Without a zone it is a time of a wall clock: what a text says of a zone is applied, and left out.
        return lambda texts: pa.array(
            [None if text is None else _microseconds_of(text) for text in texts.to_pylist()], pa.int64()
        ).cast(kind)
    return lambda texts: texts.cast(kind)


def _microseconds_of(text: str) -> int:
    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text) * 1_000
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return ms_of(aware) * 1_000 + aware.microsecond % 1_000


def _by_name(fields: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(fields[::2], fields[1::2], strict=True))


def _all_fields(by_name: Sequence[dict[bytes, bytes]], problems: _Problems) -> pa.Array:
    maps: list[list[tuple[str, str]] | None] = []
    for index, fields in enumerate(by_name):
        try:
            maps.append([(name.decode(), value.decode()) for name, value in fields.items()])
        except UnicodeDecodeError as error:
            problems.setdefault(index, f"a field is not UTF-8: {error}")
            maps.append(None)
    return pa.array(maps, HEADERS)


def _malformed(entries: Entries, index: int, problem: str) -> MalformedEntry:
    fields = entries.fields_at(index)
    pairs = tuple(zip(fields[::2], fields[1::2], strict=True))
    return MalformedEntry(str(entries.id_at(index)), pairs, 0, problem)
