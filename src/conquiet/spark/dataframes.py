"""DataFrames to topics and back: Spark's JVM makes the JSON, the data source adds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- as its docs call it

from conquiet.spark.json_columns import columns_of, json_of
from conquiet.tracing import Where, active_traces

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def publish(
    df: DataFrame,
    *,
    url: str,
    topic: str | None = None,
    stream: str | None = None,
    key: str | Column | None = None,
    columns: Sequence[str] | None = None,
    headers: Mapping[str, str | Column] | None = None,
    options: Mapping[str, str] | None = None,
) -> None:
    """Add each row of a DataFrame to a topic or stream as one message.

    Args:
        key: a column, or the name of one; rows with the same key keep to one partition.
        columns: those that make the payload; without it, all of them.
        headers: texts, or columns of text.
        options: more options of the data source, such as `dedupeId`.

    Examples:
        >>> rows = spark.range(3).select(F.col("id").alias("order_id"))
        >>> publish(rows, url=server.url, topic="shipments", key="order_id")
    """
    address = {name: value for name, value in (("topic", topic), ("stream", stream)) if value is not None}
    messages = as_messages(df, key=key, columns=columns, headers=headers)
    # Spark finds a Python data source through the session that is active in the calling thread, and a thread
    # has none until some call makes it so; this is the cheapest one that does.
    df.sparkSession.createDataFrame([], "number int")
    writer = messages.write.format("redis-stream").mode("append").options(url=url, **address)
    traces = active_traces()
    if traces is None:
        writer.options(**dict(options or {})).save()
        return
    with traces.sending(Where(destination=topic or stream or "")) as sending:
        # The data source runs in processes of its own, which know of this span by its options alone.
        context = {} if topic is None else sending.headers[0]
        writer.options(**{**context, **dict(options or {})}).save()


def as_messages(
    df: DataFrame,
    *,
    key: str | Column | None = None,
    columns: Sequence[str] | None = None,
    headers: Mapping[str, str | Column] | None = None,
) -> DataFrame:
    """The DataFrame that `redis-stream` writes: `key`, `headers` and `data`; also for streaming queries.

    Examples:
        >>> as_messages(spark.range(3), key="id").columns
        ['key', 'data']
    """
    selected = [json_of(list(columns or df.columns), df.schema).alias("data")]
    if headers:
        values = [
            F.lit(value) if isinstance(value, str) else value.cast("string") for value in headers.values()
        ]
        pairs = [part for name, value in zip(headers, values, strict=True) for part in (F.lit(name), value)]
        selected.insert(0, F.create_map(*pairs).alias("headers"))
    if key is not None:
        selected.insert(0, (F.col(key) if isinstance(key, str) else key).cast("string").alias("key"))
    return df.select(*selected)


def unpack(df: DataFrame, schema: StructType | str) -> DataFrame:
    """The payloads of what was read as columns of their own; what does not fit the schema is null.

    Examples:
        >>> publish(spark.range(3), url=server.url, stream="numbers")
        >>> numbers = spark.read.format("redis-stream").options(url=server.url, stream="numbers").load()
        >>> unpack(numbers, "id BIGINT").count() % 3
        0
    """
    return df.select(columns_of(F.col("data"), schema).alias("payload")).select("payload.*")
