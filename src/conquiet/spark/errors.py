"""What can go wrong between Spark and streams, beside the errors of the core."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from conquiet.errors import ConquietError, MalformedEntry, QueueError


class Loss(Enum):
    """What happened to entries before they were read."""

    REMOVED = "were trimmed or deleted before they were read"
    PERHAPS_REMOVED = "may have been trimmed before they were read: how many there were is not known"
    ANOTHER_STREAM = "were not read: the stream was deleted, and what is there now is another one"


class DataLossError(QueueError):
    """Entries were removed before they were read; `after` and `before` are the ids around the gap.

    Examples:
        >>> from pyspark.errors import PySparkException
        >>> shipments = spark.read.format("redis-stream").options(url=server.url, topic="shipments")
        >>> try:
        ...     rows = shipments.load().count()
        ... except PySparkException as error:  # Spark quotes it
        ...     print("entries were trimmed:", "DataLossError" in str(error))
    """

    def __init__(
        self, *, stream: str, after: str, before: str, at_most: int | None = None, how: Loss = Loss.REMOVED
    ) -> None:
        self.after = after
        self.before = before
        self.at_most = at_most
        self.how = how
        number = "" if at_most is None else f", at most {at_most} of them"
        super().__init__(
            "XRANGE",
            stream=stream,
            group=None,
            reason=(
                f"entries after {after} and before {before} {how.value}{number}; "
                "set failOnDataLoss to false to go on without them"
            ),
        )


class MalformedRowsError(QueueError):
    """Some entries of a read are malformed; nothing was changed in the stream.

    Examples:
        >>> from pyspark.errors import PySparkException
        >>> entry_id = client.xadd("foreign", {"not": "json"})
        >>> foreign = spark.read.format("redis-stream").options(url=server.url, stream="foreign")
        >>> try:
        ...     rows = foreign.load().collect()
        ... except PySparkException as error:  # Spark quotes it
        ...     print("MalformedRowsError" in str(error))
        True
        >>> foreign.option("malformed", "keep").load().count()
        1
    """

    def __init__(self, *, stream: str, entries: Sequence[MalformedEntry]) -> None:
        self.entries = tuple(entries)
        first = self.entries[0]
        others = f" and {len(self.entries) - 1} more of its batch are" if len(self.entries) > 1 else " is"
        super().__init__(
            "XRANGE",
            stream=stream,
            group=None,
            reason=(
                f"entry {first.id}{others} malformed: {first.reason}; fields {list(first.fields)!r:.200}. "
                "With the option `malformed` set to `keep` it becomes a row with null as data"
            ),
        )


class RowsLostError(QueueError):
    """The server had rows of a write, and has them no longer: a failover or a restart has lost them.

    Examples:
        >>> from pyspark.errors import PySparkException
        >>> rows = spark.range(3).select(F.col("id").alias("order_id"))
        >>> try:
        ...     publish(rows, url=server.url, topic="shipments", options={"dedupeId": "orders-of-today"})
        ... except PySparkException as error:  # Spark quotes it
        ...     print("the server has lost rows:", "RowsLostError" in str(error))
    """

    def __init__(self, *, stream: str, rows: int) -> None:
        self.rows = rows
        super().__init__(
            "XADD",
            stream=stream,
            group=None,
            reason=(
                f"the server has lost {rows} rows that it had confirmed, as in a failover to a replica that "
                "lagged behind; when the task, the batch or the named write is run again, they are added "
                "again. `minReplicas` waits for replicas"
            ),
        )


class RowsDifferError(ConquietError):
    """Attempts of one task, or runs of one write, had different rows: entries of both are in the stream.

    Examples:
        >>> from pyspark.errors import PySparkException
        >>> rows = spark.range(3).select(F.col("id").alias("order_id"))  # the same at every attempt
        >>> try:
        ...     publish(rows, url=server.url, topic="shipments", options={"dedupeId": "orders-of-today"})
        ... except PySparkException as error:  # Spark quotes it
        ...     print("the rows have changed:", "RowsDifferError" in str(error))
    """

    def __init__(self, *, stream: str, task: int | None, extra: int) -> None:
        self.stream = stream
        #: `None`: an earlier run of the whole write had other rows.
        self.task = task
        self.extra = extra
        earlier, this = (
            ("run of the write", "run") if task is None else (f"attempt of task {task}", "attempt")
        )
        super().__init__(
            f"an earlier {earlier} added {extra} entries to stream {stream!r} that this {this} "
            "has no rows for: the DataFrame gives other rows each time it is computed (uuid(), rand(), a "
            "source that changed). Cache or checkpoint it before it is written, or use `dedupeColumn`"
        )
