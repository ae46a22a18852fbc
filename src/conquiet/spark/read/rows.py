"""Entries as the rows of a query: an Arrow batch with the columns that were asked for."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from conquiet.errors import MalformedEntry
from conquiet.payload import decode_payload
from conquiet.spark.columns import FIELDS_HEADER, HEADERS, PROBLEM_HEADER
from conquiet.spark.errors import MalformedRowsError
from conquiet.spark.wire.replies import Entries, milliseconds_of
from conquiet.spark.wire.texts import looks_like_objects

#: The last millisecond that Spark's timestamps can show in every language.
_LAST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMaker:
    """Makes the batches of one partition."""

    stream: str
    partition: int
    is_topic: bool
    keeps_malformed: bool
    schema: pa.Schema

    def batch(self, entries: Entries) -> pa.RecordBatch:
        """All entries in order.

        Raises:
            MalformedRowsError: some entry is no message, and the malformed ones are not kept.
        """
        columns = self._contents(entries)
        # Ids are digits: nothing to check.
        columns["id"] = entries.ids.view(pa.string())
        length = len(entries)
        arrays = []
        for field in self.schema:
            match field.name:
                case "stream":
                    array = pa.repeat(pa.scalar(self.stream), length)
                case "partition":
                    array = pa.repeat(pa.scalar(self.partition, pa.int32()), length)
                case "timestamp":
                    array = _timestamps(entries, field.type)
                case name:
                    array = columns[name]
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _contents(self, entries: Entries) -> dict[str, pa.Array]:
        texts, problems = _texts(entries)
        if self.is_topic and {"key", "headers", "data"} & set(self.schema.names):
            from conquiet.spark.wire.envelope_decoder import unwrap

            inside = unwrap(texts)
            key, headers, data = inside.key, inside.headers, inside.data
            problems |= inside.problems
        else:
            key, headers, data = pa.nulls(len(texts), pa.string()), pa.nulls(len(texts), HEADERS), texts
        if problems:
            if not self.keeps_malformed:
                self._refuse(entries, problems)
            data, headers = _with_problems(entries, data, headers, problems)
        return {"key": key, "headers": headers, "data": data}

    def _refuse(self, entries: Entries, problems: dict[int, str]) -> None:
        malformed = []
        for index, problem in sorted(problems.items()):
            fields = _fields(entries, index)
            pairs = tuple(zip(fields[::2], fields[1::2], strict=True))
            malformed.append(MalformedEntry(str(entries.id_at(index)), pairs, 0, problem))
        raise MalformedRowsError(stream=self.stream, entries=malformed)


def _texts(entries: Entries) -> tuple[pa.StringArray, dict[int, str]]:
    problems = {
        index: f"it must have exactly one field `data`, has {len(fields) // 2}"
        for index, fields in entries.odd.items()
    }
    try:
        texts = entries.data.cast(pa.string())
    except pa.ArrowInvalid:
        texts, not_text = _texts_one_by_one(entries.data)
        problems |= not_text
    return texts, problems | _not_objects(texts)


def _texts_one_by_one(data: pa.BinaryArray) -> tuple[pa.StringArray, dict[int, str]]:
    texts: list[str | None] = []
    problems = {}
    for index, value in enumerate(data.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            problems[index] = f"`data` is not UTF-8: {error}"
            texts.append(None)
    return pa.array(texts, pa.string()), problems


def _not_objects(texts: pa.StringArray) -> dict[int, str]:
    # What stands between the braces is left to whoever parses it: from_json, or the envelope's parser.
    problems = {}
    for index in np.flatnonzero(~looks_like_objects(texts)):
        try:
            decode_payload(texts[int(index)].as_py().encode())
        except ValueError as error:
            problems[int(index)] = str(error)
    return problems


def _with_problems(
    entries: Entries, data: pa.StringArray, headers: pa.MapArray, problems: dict[int, str]
) -> tuple[pa.StringArray, pa.MapArray]:
    kept_data, kept_headers = data.to_pylist(), headers.to_pylist()
    for index, problem in problems.items():
        fields = json.dumps([b64encode(part).decode() for part in _fields(entries, index)])
        kept_data[index] = None
        kept_headers[index] = [(PROBLEM_HEADER, problem), (FIELDS_HEADER, fields)]
    return pa.array(kept_data, pa.string()), pa.array(kept_headers, HEADERS)


def _fields(entries: Entries, index: int) -> tuple[bytes, ...]:
    return entries.odd.get(index) or (b"data", entries.data[index].as_py())


def _timestamps(entries: Entries, kind: Any) -> pa.Array:
    milliseconds = milliseconds_of(entries.ids)
    is_unknown = milliseconds > _LAST_MS
    microseconds = np.where(is_unknown, 0, milliseconds) * 1_000
    return pa.array(microseconds, pa.int64(), mask=is_unknown).cast(kind)
