"""The columns of the data source, and which of them a query asks for."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType, TimestampType

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


def check_columns(schema: StructType) -> None:
    """Refuse a schema with other columns than ours.

    Spark does not pass a query's columns to Python data sources: a schema given to the reader is the way
    to leave some out.
    """
    known = {field.name: field.dataType for field in SCHEMA.fields}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            raise ValueError(
                f"redis-stream has no column {field.name!r} of type {field.dataType.simpleString()}; "
                f"its columns are {SCHEMA.simpleString()}"
            )
