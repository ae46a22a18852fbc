"""The columns of the data source, and which of them a query asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType, TimestampType

from conquiet.spark.options import ReadOptions

SCHEMA = StructType(
    [
        StructField("stream", StringType()),
        StructField("partition", IntegerType()),
        StructField("id", StringType()),
        #: When the entry was added: the milliseconds of its id.
        StructField("timestamp", TimestampType()),
        StructField("key", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("data", StringType()),
    ]
)

HEADERS = pa.map_(pa.string(), pa.string())

#: Headers of an entry that is kept though it is malformed: why it is, and its fields in base64.
PROBLEM_HEADER, FIELDS_HEADER = "conquiet-malformed", "conquiet-fields"

#: What there is of each entry beside its fields. Where a field has the name `id`, it is `_id`, and so on.
_OF_ENTRIES = ("stream", "partition", "id", "timestamp")
#: All fields of an entry, and what is wrong with one that is kept.
ALL_FIELDS, PROBLEM = StructField("fields", MapType(StringType(), StringType())), "_malformed"

#: What one field can be read as, and what is written as the text of one.
FIELD_TYPES = (
    types.StringType,
    types.BinaryType,
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)


@dataclass(frozen=True, slots=True)
class Columns:
    """What each column of a query is."""

    #: Columns of what there is of each entry: `id`, `timestamp` and so on, by the name of the column.
    of_entries: Mapping[str, str]
    #: Whether the others are fields of entries, instead of what is in the field `data`.
    are_fields: bool = False
    #: Whether that follows from a schema alone: a column of `data` with a typing error looks the same.
    are_guessed: bool = False


def schema_for(options: ReadOptions) -> StructType | str:
    """Every column; a schema given to the reader chooses some of them."""
    if options.fields is None:
        # The same stream may be that of any topic.
        return _with_topic() if _has_topic(options) else SCHEMA
    declared = "fields MAP<STRING, STRING>" if options.fields == "*" else options.fields
    names = declared_fields(options.fields)
    columns = [
        f"{'_' * (field.name in names)}{field.name} {field.dataType.simpleString()}"
        for field in SCHEMA.fields
        if field.name in _OF_ENTRIES
    ]
    problem = [f"{PROBLEM} STRING"] if options.malformed == "keep" else []
    return ", ".join([*columns, declared, *problem])


def columns_of(schema: StructType, options: ReadOptions) -> Columns:
    """What each column of the schema is.

    Spark does not pass a query's columns to Python data sources: a schema given to the reader is the way
    to leave some out. Of a stream it may also name fields of its entries.

    Raises:
        ValueError: there is no such column.
    """
    known = {
        field.name: field.dataType for field in _with_topic() if field.name != "topic" or _has_topic(options)
    }
    is_known = all(known.get(field.name) == field.dataType for field in schema.fields)
    if options.fields is None and (is_known or not _may_have_fields(schema, known, options)):
        if not is_known:
            raise _unknown_column(schema, known)
        return Columns({field.name: field.name for field in schema.fields})
    declared = declared_fields(options.fields or "*")
    taken = declared | {
        field.name
        for field in schema.fields
        if field.name in _OF_ENTRIES and known[field.name] != field.dataType
    }
    of_entries = {}
    for field in schema.fields:
        of_entry = field.name.removeprefix("_") if field.name[1:] in taken else field.name
        if field.name not in taken and of_entry in _OF_ENTRIES and known[of_entry] == field.dataType:
            of_entries[field.name] = of_entry
        elif not isinstance(field.dataType, FIELD_TYPES) and field != ALL_FIELDS:
            raise ValueError(
                f"column {field.name!r} of type {field.dataType.simpleString()} cannot be read from a "
                "field: read it as a string, and parse it"
            )
    return Columns(of_entries, are_fields=True, are_guessed=options.fields is None)


def declared_fields(text: str) -> set[str]:
    """The names in a list of columns as Spark's SQL has it; none in "*"."""
    if text.strip() == "*":
        return set()
    # Commas inside of types and comments divide nothing.
    bare, nested = re.sub(r"\([^)]*\)|'[^']*'", "", text), 1
    while nested:
        bare, nested = re.subn(r"<[^<>]*>", "", bare)
    return {(match[1] or match[2]).replace("``", "`") for match in _COLUMN.finditer(bare)}


_COLUMN = re.compile(r"(?:^|,)\s*(?:`((?:[^`]|``)+)`|([^\s,:`]+))")


def _may_have_fields(schema: StructType, known: Mapping[str, types.DataType], options: ReadOptions) -> bool:
    return not options.address.is_of_topics and any(field.name not in known for field in schema.fields)


def _unknown_column(schema: StructType, known: Mapping[str, types.DataType]) -> ValueError:
    wrong = next(field for field in schema.fields if known.get(field.name) != field.dataType)
    columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
    return ValueError(
        f"redis-stream has no column {wrong.name!r} of type {wrong.dataType.simpleString()}; "
        f"its columns are {columns}"
    )


def _has_topic(options: ReadOptions) -> bool:
    return options.address.is_of_topics and options.address.is_of_several


def _with_topic() -> StructType:
    return StructType([StructField("topic", StringType()), *SCHEMA.fields])
