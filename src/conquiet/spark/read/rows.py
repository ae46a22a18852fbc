"""Entries as the rows of a query: an Arrow batch with the columns that were asked for."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from conquiet.errors import MalformedEntry
from conquiet.payload import decode_payload
from conquiet.spark.columns import FIELDS_HEADER, HEADERS, PROBLEM_HEADER
from conquiet.spark.errors import MalformedRowsError
from conquiet.spark.read.splits import Split
from conquiet.spark.wire.replies import Entries, milliseconds_of
from conquiet.spark.wire.texts import looks_like_objects

#: The last millisecond that Spark's timestamps can show in every language.
_LAST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMaker:
    """Makes the batches of one split of entries with the field `data`."""

    split: Split
    is_topic: bool
    keeps_malformed: bool
    schema: pa.Schema

    def batch(self, entries: Entries) -> pa.RecordBatch:
        """All entries in order.

        Raises:
            MalformedRowsError: some entry is malformed, and such are not kept.
        """
        key, headers, data = self._contents(entries)
        columns = {"key": key, "headers": headers, "data": data}
        arrays = [
            columns[field.name]
            if field.name in columns
            else column_of_entries(field.name, entries, self.split, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _contents(self, entries: Entries) -> tuple[pa.StringArray, pa.MapArray, pa.StringArray]:
        data, problems = _texts_of(entries)
        key, headers = pa.nulls(len(data), pa.string()), pa.nulls(len(data), HEADERS)
        if self.is_topic and {"key", "headers", "data"} & set(self.schema.names):
            # A plain stream needs nothing of the MQ.
            from conquiet.spark.wire.envelope_decoder import decode_envelopes

            decoded = decode_envelopes(data)
            key, headers, data = decoded.key, decoded.headers, decoded.data
            problems |= decoded.problems
        if not problems:
            return key, headers, data
        malformed, kept_data, kept_headers = [], data.to_pylist(), headers.to_pylist()
        for index, problem in sorted(problems.items()):
            fields = entries.fields_at(index)
            pairs = tuple(zip(fields[::2], fields[1::2], strict=True))
            malformed.append(MalformedEntry(str(entries.id_at(index)), pairs, 0, problem))
            encoded = json.dumps([b64encode(part).decode() for part in fields])
            kept_data[index] = None
            kept_headers[index] = [(PROBLEM_HEADER, problem), (FIELDS_HEADER, encoded)]
        if not self.keeps_malformed:
            raise MalformedRowsError(stream=self.split.stream, entries=malformed)
        return key, pa.array(kept_headers, HEADERS), pa.array(kept_data, pa.string())


def column_of_entries(name: str, entries: Entries, split: Split, kind: pa.DataType) -> pa.Array:
    """What there is of entries beside their fields."""
    match name:
        case "topic":
            return pa.repeat(pa.scalar(split.place), len(entries))
        case "stream":
            return pa.repeat(pa.scalar(split.stream), len(entries))
        case "partition":
            return pa.repeat(pa.scalar(split.partition, pa.int32()), len(entries))
        case "timestamp":
            milliseconds = milliseconds_of(entries.ids)
            is_unknown = milliseconds > _LAST_MS
            microseconds = np.where(is_unknown, 0, milliseconds) * 1_000
            return pa.array(microseconds, pa.int64(), mask=is_unknown).cast(kind)
    # Ids are digits: nothing to check.
    return entries.ids.view(pa.string())


def _texts_of(entries: Entries) -> tuple[pa.StringArray, dict[int, str]]:
    """The field `data` of each entry as text, null where it has none; and what is wrong, by index."""
    problems = {
        index: f"it must have exactly one field `data`, has {len(fields) // 2}"
        for index, fields in entries.others.items()
    }
    try:
        texts = entries.data.cast(pa.string())
    except pa.ArrowInvalid:
        values = entries.data.to_pylist()
        for index, value in enumerate(values):
            try:
                values[index] = None if value is None else value.decode()
            except UnicodeDecodeError as error:
                problems[index] = f"`data` is not UTF-8: {error}"
                values[index] = None
        texts = pa.array(values, pa.string())
    # What is between the braces is parsed by `from_json`, or with the envelope.
    for index in np.flatnonzero(~looks_like_objects(texts)).tolist():
        try:
            decode_payload(texts[index].as_py().encode())
        except ValueError as error:
            problems[index] = str(error)
    return texts, problems
