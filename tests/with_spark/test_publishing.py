"""DataFrames to messages and back."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from conquiet.spark import as_messages, publish, unpack
from tests.with_spark.server_side import envelopes_in

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
SIMPLE = {
    T.StringType(): TEXT,
    T.BooleanType(): st.booleans(),
    T.ByteType(): st.integers(-(2**7), 2**7 - 1),
    T.ShortType(): st.integers(-(2**15), 2**15 - 1),
    T.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    T.LongType(): st.integers(-(2**63), 2**63 - 1),
    T.DoubleType(): st.floats(allow_nan=False, allow_infinity=False),
    T.FloatType(): st.floats(width=32, allow_nan=False, allow_infinity=False),
    T.DecimalType(20, 5): st.decimals(
        min_value=-(10**14), max_value=10**14, places=5, allow_nan=False, allow_infinity=False
    ),
    T.DateType(): st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1)),
    T.TimestampType(): MOMENTS,
    T.TimestampNTZType(): MOMENTS,
    T.BinaryType(): st.binary(max_size=20).map(bytearray),
}


def column_types():
    simple = st.sampled_from(list(SIMPLE)).map(lambda kind: (kind, SIMPLE[kind] | st.none()))

    def nested(inner):
        arrays = inner.map(lambda of: (T.ArrayType(of[0]), st.lists(of[1], max_size=3) | st.none()))
        maps = inner.map(
            lambda of: (
                T.MapType(T.StringType(), of[0]),
                st.dictionaries(TEXT, of[1], max_size=3) | st.none(),
            )
        )
        structs = st.tuples(inner, inner).map(
            lambda two: (
                T.StructType([T.StructField("a", two[0][0]), T.StructField("b", two[1][0])]),
                st.tuples(two[0][1], two[1][1]) | st.none(),
            )
        )
        return arrays | maps | structs

    return st.recursive(simple, nested, max_leaves=3)


@st.composite
def frames(draw):
    """A schema of one to six columns, and rows of it."""
    columns = draw(st.lists(column_types(), min_size=1, max_size=6))
    schema = T.StructType([T.StructField(f"c{n} {n}", kind) for n, (kind, _) in enumerate(columns)])
    rows = draw(st.lists(st.tuples(*(values for _, values in columns)), min_size=1, max_size=5))
    return schema, rows


def as_set(rows) -> list[str]:
    return sorted(repr(row.asDict(recursive=True)) for row in rows)


@settings(max_examples=8)
@given(frames())
def test_any_dataframe_comes_back_equal(spark, valkey_url, frame):
    schema, rows = frame
    stream = f"test:{uuid.uuid4().hex}"
    df = spark.createDataFrame(rows, schema)

    publish(df, url=valkey_url, stream=stream)
    read = spark.read.format("redis-stream").options(url=valkey_url, stream=stream).load()

    assert as_set(unpack(read, schema).collect()) == as_set(df.collect())


def test_a_topics_messages_have_key_headers_and_the_chosen_columns(spark, valkey, valkey_url, topic):
    df = spark.createDataFrame([(1, "a", None), (2, "b", 0.5)], "number int, customer string, amount double")

    publish(
        df,
        url=valkey_url,
        topic=topic.name,
        key="customer",
        columns=["number", "amount"],
        headers={"source": "nightly", "number": F.col("number")},
    )

    found = sorted(envelopes_in(valkey, topic), key=lambda envelope: envelope["key"])
    assert [(one["key"], one["headers"], one["payload"]) for one in found] == [
        ("a", {"source": "nightly", "number": "1"}, {"number": 1, "amount": None}),
        ("b", {"source": "nightly", "number": "2"}, {"number": 2, "amount": 0.5}),
    ]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (float("nan"), "double"),
        (float("inf"), "float"),
        ([1.0, float("nan")], "array<double>"),
        ((None, float("-inf")), "struct<a: int, b: float>"),
        ({"x": [float("nan")]}, "map<string, array<double>>"),
    ],
)
def test_a_number_that_json_has_no_word_for_is_refused(spark, value, kind):
    df = spark.createDataFrame([(value,)], f"amount {kind}")

    with pytest.raises(PySparkException, match="amount has a NaN or an infinity"):
        as_messages(df).collect()


@pytest.mark.parametrize("kind", ["interval day to second", "map<int, string>", "array<map<date, int>>"])
def test_a_type_that_would_not_come_back_is_refused_before_anything_runs(spark, valkey_url, stream, kind):
    df = spark.createDataFrame([], f"id int, strange {kind}")

    with pytest.raises(TypeError, match="column strange"):
        publish(df, url=valkey_url, stream=stream)


def test_decimals_and_times_keep_every_digit(spark, valkey, valkey_url, stream):
    df = spark.createDataFrame(
        [(Decimal("0.000000000000000001"), dt.datetime(2026, 1, 2, 3, 4, 5, 678901))],
        "amount decimal(38,18), at timestamp",
    )

    publish(df, url=valkey_url, stream=stream)

    [(_, fields)] = valkey.xrange(stream)
    assert Decimal(json.loads(fields[b"data"])["amount"]) == Decimal("0.000000000000000001")
    assert json.loads(fields[b"data"])["at"] == "2026-01-02T03:04:05.678901Z"
    read = spark.read.format("redis-stream").options(url=valkey_url, stream=stream).load()
    assert as_set(unpack(read, df.schema).collect()) == as_set(df.collect())


def test_a_consumer_gets_decimals_exactly_as_spark_has_them(spark, valkey, valkey_url, topic):
    exact = Decimal("12345678901234567890.123456789012345678")
    df = spark.createDataFrame(
        [(exact, [exact], {"a": exact}, (exact,))],
        "amount decimal(38,18), list array<decimal(38,18)>, map map<string,decimal(38,18)>, "
        "struct struct<amount: decimal(38,18)>",
    )

    publish(df, url=valkey_url, topic=topic.name)

    [envelope] = envelopes_in(valkey, topic)
    text = "12345678901234567890.123456789012345678"
    assert envelope["payload"] == {
        "amount": text,
        "list": [text],
        "map": {"a": text},
        "struct": {"amount": text},
    }
    read = spark.read.format("redis-stream").options(url=valkey_url, topic=topic.name).load()
    assert unpack(read, df.schema).first() == df.first()


@pytest.mark.parametrize("column", ["text", "array(text)", "map('k', text)", "map(text, 1)", "struct(text)"])
def test_text_that_is_not_utf8_fails_the_query(spark, valkey, valkey_url, stream, column):
    df = spark.range(1).selectExpr("cast(X'61ff' as string) as text").selectExpr(f"{column} as it")

    with pytest.raises(PySparkException, match="column it has text that is not UTF-8"):
        publish(df, url=valkey_url, stream=stream)

    assert valkey.xlen(stream) == 0
