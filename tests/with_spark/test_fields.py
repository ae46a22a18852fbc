"""Entries of any fields, as `redis-cli XADD` adds them: read as typed columns, and written from them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.datasource import EqualTo
from pyspark.sql.types import StructField, StructType

from conquiet.spark.columns import declared_fields
from conquiet.spark.errors import MalformedRowsError
from conquiet.spark.options import ReadOptions, WriteOptions
from conquiet.spark.outages import Patience
from conquiet.spark.read.batch_reader import StreamBatchReader
from conquiet.spark.write.field_target import FieldTarget, field_columns
from conquiet.spark.write.task_writer import TaskWriter
from conquiet.spark.write.writers import StreamBatchWriter
from tests.with_spark.test_task_writer import DiedError, attempt_of

SENSOR = StructType(
    [
        StructField("id", types.StringType()),
        StructField("sensor", types.StringType()),
        StructField("degrees", types.DoubleType()),
        StructField("count", types.LongType()),
        StructField("price", types.DecimalType(10, 2)),
        StructField("is_on", types.BooleanType()),
        StructField("day", types.DateType()),
        StructField("at", types.TimestampType()),
        StructField("raw", types.BinaryType()),
    ]
)


def rows_in(url: str, stream: str, schema: StructType, **options: object) -> list[dict[str, Any]]:
    texts = {name: str(value) for name, value in options.items()}
    reader = StreamBatchReader(ReadOptions.of({"url": url, "stream": stream, **texts}), schema)
    return [row for split in reader.partitions() for batch in reader.read(split) for row in batch.to_pylist()]


def test_fields_of_any_entry_are_columns_of_their_types(valkey, valkey_url, stream):
    first = valkey.xadd(
        stream,
        {
            "sensor": "kitchen ä",
            "degrees": "21.5",
            "count": "9007199254740993",
            "price": "12.3",
            "is_on": "true",
            "day": "2024-02-29",
            "at": "2024-02-29T12:00:00.000001+01:00",
            "raw": b"\xff\x00",
            "more": "that nobody asked for",
        },
    )
    second = valkey.xadd(stream, {"sensor": "cellar", "at": "1700000000123"})

    rows = rows_in(valkey_url, stream, SENSOR)

    at = datetime(2024, 2, 29, 11, 0, 0, 1, tzinfo=UTC)
    assert rows[0] == {
        "id": first.decode(),
        "sensor": "kitchen ä",
        "degrees": 21.5,
        "count": 9007199254740993,
        "price": Decimal("12.30"),
        "is_on": True,
        "day": date(2024, 2, 29),
        "at": at,
        "raw": b"\xff\x00",
    }
    assert (rows[1]["id"], rows[1]["sensor"], rows[1]["degrees"]) == (second.decode(), "cellar", None)
    assert rows[1]["at"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("count", "many"),
        ("count", "1.5"),
        ("price", "1.005"),
        ("price", "123456789.00"),
        ("day", "yesterday"),
        ("at", "noon"),
        ("sensor", b"\xff"),
    ],
)
def test_a_value_that_is_not_of_its_type_fails_the_read_or_is_kept_as_null(
    valkey, valkey_url, stream, column, value
):
    valkey.xadd(stream, {"sensor": "a", "count": "1"})
    wrong = valkey.xadd(stream, {"sensor": "b", column: value})
    valkey.xadd(stream, {"sensor": "c", "count": "3"})
    with_problem = StructType([*SENSOR.fields, StructField("_malformed", types.StringType())])

    with pytest.raises(MalformedRowsError, match=f"{wrong.decode()}.*field '{column}' is not of type"):
        rows_in(valkey_url, stream, SENSOR)
    rows = rows_in(valkey_url, stream, with_problem, malformed="keep")

    assert [row["count"] for row in rows][::2] == [1, 3]
    assert rows[1][column] is None
    assert [bool(row["_malformed"]) for row in rows] == [False, True, False]


def test_all_fields_of_an_entry_are_one_map_and_data_is_a_field_as_others(valkey, valkey_url, stream):
    schema = StructType([StructField("fields", types.MapType(types.StringType(), types.StringType()))])
    valkey.xadd(stream, {"a": "1", "b": "2"})
    valkey.xadd(stream, {"data": "{}"})

    rows = rows_in(valkey_url, stream, schema, fields="*")

    assert [dict(row["fields"]) for row in rows] == [{"a": "1", "b": "2"}, {"data": "{}"}]


def test_a_field_named_as_a_column_of_ours_takes_the_name_and_narrows_no_read(valkey, valkey_url, stream):
    schema = StructType([StructField(name, types.StringType()) for name in ("id", "_id")])
    entry = valkey.xadd(stream, {"id": "1700000000000-0"})
    options = ReadOptions.of({"url": valkey_url, "stream": stream, "fields": "id STRING"})
    reader = StreamBatchReader(options, schema)

    reader.pushFilters([EqualTo(("id",), "1700000000000-0")])
    rows = [row for split in reader.partitions() for batch in reader.read(split) for row in batch.to_pylist()]

    assert rows == [{"id": "1700000000000-0", "_id": entry.decode()}]


def test_a_wrong_column_of_a_stream_of_json_is_no_field_that_is_always_null(valkey, valkey_url, stream):
    schema = StructType([StructField("dta", types.StringType())])
    valkey.xadd(stream, {"data": "{}"})

    with pytest.raises(MalformedRowsError, match="has the field `data` alone"):
        rows_in(valkey_url, stream, schema)
    assert rows_in(valkey_url, stream, schema, fields="dta STRING") == [{"dta": None}]


def test_names_are_found_in_a_list_of_columns():
    text = "a INT, `b c` DECIMAL(10, 2) COMMENT 'x, y', d: STRUCT<e: INT, f: MAP<STRING, INT>>, g STRING"

    assert declared_fields(text) == {"a", "b c", "d", "g"}
    assert declared_fields("*") == set()


def test_spark_reads_fields_by_a_list_of_columns_and_by_a_schema(spark, read, valkey, valkey_url, stream):
    for number in range(5):
        valkey.xadd(stream, {"number": str(number), "timestamp": f"{number}.5"})

    declared = read(stream=stream, fields="number INT, timestamp DOUBLE")
    by_schema = spark.read.schema("number INT, timestamp DOUBLE").format("redis-stream")
    by_schema = by_schema.options(url=valkey_url, stream=stream).load()

    assert declared.columns == ["stream", "partition", "id", "_timestamp", "number", "timestamp"]
    assert declared.selectExpr("sum(number)", "sum(timestamp)").collect() == [(10, 12.5)]
    assert by_schema.where("timestamp > 2").count() == 3


def send_fields(
    url: str, stream: str, rows: list[dict[str, Any]], schema: StructType, attempt, dies_after=None, **more
):
    """One attempt at rows, two in a batch; dies before it has sent all of them with `dies_after`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    options = WriteOptions.of({"url": url, "stream": stream, "fields": "*", **more})
    names = field_columns(options, schema)
    with options.address.connect() as client:
        target = FieldTarget(stream, options, names)
        with TaskWriter(client, target, options, attempt, Patience(options.retry_timeout_ms)) as writer:
            for first in range(0, len(rows), 2):
                if dies_after is not None and first >= dies_after:
                    raise DiedError
                batch = rows[first : first + 2]
                writer.add(pa.RecordBatch.from_pylist(batch, to_arrow_schema(schema, timezone="UTC")))
            writer.finish()


def test_columns_are_fields_and_come_back_as_they_were(valkey, valkey_url, stream):
    schema = StructType(SENSOR.fields[1:])
    full = {
        "sensor": "kitchen ä\r\n",
        "degrees": 0.1 + 0.2,
        "count": -(2**63),
        "price": Decimal("-0.10"),
        "is_on": False,
        "day": date(1969, 12, 31),
        "at": datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
        "raw": b"\xff\x00\xdd",
    }
    rows = [full, full | {"degrees": None, "sensor": ""}]

    send_fields(valkey_url, stream, rows, schema, attempt_of())

    assert rows_in(valkey_url, stream, schema) == rows
    [(_, fields), (_, fewer)] = valkey.xrange(stream)
    assert (fields[b"price"], fields[b"at"]) == (b"-0.10", b"2024-02-29T12:00:00.000001Z")
    assert b"degrees" not in fewer


def test_entries_of_fields_are_added_once_however_often_a_task_is_tried(valkey, valkey_url, stream):
    schema = StructType([StructField("number", types.IntegerType())])
    rows = [{"number": number} for number in range(10)]
    attempt = attempt_of()

    for dies_after in (2, 6, None):
        try:
            send_fields(valkey_url, stream, rows, schema, attempt, dies_after)
        except DiedError:
            continue
    send_fields(valkey_url, stream, rows, schema, attempt_of(), dedupeColumn="number")
    send_fields(valkey_url, stream, rows, schema, attempt_of(), dedupeColumn="number")

    found = [int(fields[b"number"]) for _, fields in valkey.xrange(stream)]
    assert found == [*range(10), *range(10)]


def test_a_stream_is_trimmed_while_it_is_written(valkey, valkey_url, stream):
    schema = StructType([StructField("number", types.IntegerType())])
    old = valkey.xadd(stream, {"number": "-1"}, id="1000-0")
    rows = [{"number": number} for number in range(1_000)]

    send_fields(valkey_url, stream, rows, schema, attempt_of(), maxLen="200")

    assert 200 <= valkey.xlen(stream) < 400
    assert valkey.xrange(stream, max=old) == []
    last = valkey.xinfo_stream(stream)["last-generated-id"].decode()
    send_fields(valkey_url, stream, rows, schema, attempt_of(), minId=last)
    assert valkey.xlen(stream) < 1_100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": "*"}, "a text with to_json"),
        ({"fields": "a,c"}, "has no c"),
        ({"fields": "a", "dedupe": "off"}, "added once each"),
        ({"fields": "a", "topic": "orders", "stream": None}, "fields is for streams"),
        ({"fields": "a", "maxLen": "0"}, "maxLen must be a positive int"),
        ({"fields": "a", "maxLen": "5", "minId": "0"}, "not both"),
    ],
)
def test_fields_that_cannot_be_written_are_named(options, message):
    schema = StructType(
        [
            StructField("a", types.StringType()),
            StructField("b", types.ArrayType(types.StringType())),
        ]
    )
    given = {"url": "redis://localhost", "stream": "s", **options}

    with pytest.raises((TypeError, ValueError), match=message):
        StreamBatchWriter(WriteOptions.of({name: text for name, text in given.items() if text}), schema)


def test_a_row_without_any_field_is_refused(valkey_url, stream):
    schema = StructType([StructField("number", types.IntegerType())])

    with pytest.raises(ValueError, match="makes no entry"):
        send_fields(valkey_url, stream, [{"number": None}], schema, attempt_of())


def test_spark_writes_columns_as_fields(spark, write, valkey, stream):
    df = spark.range(0, 1_000, 1, 3).selectExpr(
        "id AS number", "concat('s', id % 7) AS sensor", "id / 4 AS degrees"
    )

    write(df, stream=stream, fields="*", dedupeId="once")
    write(df.repartition(2), stream=stream, fields="*", dedupeId="once")

    found = [fields for _, fields in valkey.xrange(stream)]
    assert sorted(int(fields[b"number"]) for fields in found) == list(range(1_000))
    assert {fields[b"sensor"] for fields in found} == {f"s{number}".encode() for number in range(7)}
    assert json.loads(found[0][b"degrees"]) == int(found[0][b"number"]) / 4
