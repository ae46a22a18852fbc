"""What streaming queries report of their sources, read from their progress; and as metrics for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge, Histogram
from pyspark.sql.streaming.listener import StreamingQueryListener

from conquiet.queue.metrics import MetricSet
from conquiet.spark.read.backlog import TOTALS

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

_QUERY, _SOURCE = ("query",), ("query", "source")
_GAUGES_OF_SOURCE = (
    "conquiet_spark_rows_behind",
    "conquiet_spark_bytes_behind",
    "conquiet_spark_oldest_age_seconds",
)
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_seconds = partial(Histogram, buckets=_BUCKETS)


METRICS = MetricSet(
    {
        "conquiet_spark_rows_behind": (Gauge, "Entries behind the last micro-batch.", _SOURCE),
        "conquiet_spark_bytes_behind": (Gauge, "About how much memory they take in Redis.", _SOURCE),
        "conquiet_spark_oldest_age_seconds": (Gauge, "The age of the oldest of them.", _SOURCE),
        "conquiet_spark_retries_total": (Counter, "Tries of the planner after outages of Redis.", _SOURCE),
        "conquiet_spark_input_rows_total": (Counter, "Rows of all micro-batches.", _QUERY),
        "conquiet_spark_batch_duration_seconds": (_seconds, "Time of a micro-batch.", _QUERY),
        "conquiet_spark_query_active": (Gauge, "1 while the query runs.", _QUERY),
        "conquiet_spark_query_failures_total": (Counter, "Queries that ended with an error.", _QUERY),
    }
)


@dataclass(frozen=True, slots=True)
class SourceBacklog:
    """What one source of a query has not read yet, as its progress says.

    Examples:
        >>> def is_late(query):
        ...     return any(source.oldest_age_ms > 60_000 for source in source_backlogs(query.lastProgress))
    """

    #: The stream, the topic, the list or the pattern that is read.
    place: str
    #: Its URL without user, password and parameters.
    server: str
    #: Entries behind the micro-batch, of all streams and of the one with the most; `None` if unknown.
    rows_behind: int | None
    max_rows_behind: int | None
    #: The age of the oldest of them; 0 if there is none.
    oldest_age_ms: int
    #: About how much memory they take.
    bytes_behind: int
    #: Tries after outages, of the planner that runs now.
    retries: int


def source_backlogs(progress: StreamingQueryProgress) -> list[SourceBacklog]:
    """Of `query.lastProgress`, or of a listener's event: a backlog for each `redis-stream` that is read.

    Examples:
        >>> sent = Producer(client).send("shipments", {"order_id": 7}, key="ann")
        >>> source = spark.readStream.format("redis-stream").options(url=server.url, topic="shipments")
        >>> writer = source.option("start", "earliest").load().writeStream.format("noop")
        >>> query = writer.trigger(availableNow=True).start()
        >>> ended = query.awaitTermination()
        >>> [backlog] = source_backlogs(query.lastProgress)
        >>> backlog.place, backlog.rows_behind
        ('shipments', 0)
    """
    return list(_backlogs(progress))


class QueryMetrics(StreamingQueryListener):
    """Makes metrics of the progress of queries: `spark.streams.addListener(QueryMetrics())`.

    They are in the process of the driver, in prometheus_client's default registry; `start_http_server` of
    prometheus_client serves them.

    Examples:
        >>> metrics = QueryMetrics()
        >>> spark.streams.addListener(metrics)
        >>> spark.streams.removeListener(metrics)
    """

    def __init__(self) -> None:
        #: By query, since Spark names it only when it starts and in its progress.
        self._names: dict[str, str] = {}
        #: Of each source of each query that runs.
        self._retries: dict[tuple[str, str], int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's name
        """It runs."""
        self._name_of(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 -- Spark's name
        """A micro-batch has ended."""
        progress = event.progress
        query = self._name_of(progress)
        METRICS.emit("conquiet_spark_input_rows_total", progress.numInputRows, query)
        METRICS.emit("conquiet_spark_batch_duration_seconds", progress.batchDuration / 1_000, query)
        for source in source_backlogs(progress):
            label = f"{source.place}@{source.server}"
            if source.rows_behind is not None:
                METRICS.emit("conquiet_spark_rows_behind", source.rows_behind, query, label)
            METRICS.emit("conquiet_spark_bytes_behind", source.bytes_behind, query, label)
            METRICS.emit("conquiet_spark_oldest_age_seconds", source.oldest_age_ms / 1_000, query, label)
            known = self._retries.get((query, label), 0)
            # A planner that was started again counts from 0.
            new = source.retries - known if source.retries >= known else source.retries
            self._retries[query, label] = source.retries
            METRICS.emit("conquiet_spark_retries_total", new, query, label)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 -- Spark's name
        """Nothing is new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 -- Spark's name
        """It has ended."""
        query = self._names.pop(str(event.id), str(event.id))
        METRICS.emit("conquiet_spark_query_active", 0, query)
        # What is behind a query that has ended is not known any more.
        for label in [source for name, source in self._retries if name == query]:
            del self._retries[query, label]
            for gauge in _GAUGES_OF_SOURCE:
                METRICS.remove(gauge, query, label)
        if event.exception is not None:
            METRICS.emit("conquiet_spark_query_failures_total", 1, query)

    def _name_of(self, query: QueryStartedEvent | StreamingQueryProgress) -> str:
        """Its name; that of one that began before it was listened to is in its progress."""
        query_id = str(query.id)
        if query_id not in self._names:
            name = self._names[query_id] = query.name or query_id
            METRICS.emit("conquiet_spark_query_active", 1, name)
            METRICS.emit("conquiet_spark_query_failures_total", 0, name)
        return self._names[query_id]


def _backlogs(progress: StreamingQueryProgress) -> Iterator[SourceBacklog]:
    for source in progress.sources:
        latest: Any = source.latestOffset
        try:
            report = json.loads(latest) if isinstance(latest, str) else latest
        except ValueError:
            continue
        totals = report.get(TOTALS) if isinstance(report, dict) else None
        # Another source may call something the same.
        if isinstance(totals, dict) and "rowsBehind" in totals:
            yield SourceBacklog(
                place=totals["from"],
                server=totals["server"],
                rows_behind=totals["rowsBehind"],
                max_rows_behind=totals["maxRowsBehind"],
                oldest_age_ms=totals["oldestAgeMs"],
                bytes_behind=totals["bytesBehind"],
                retries=totals["retries"],
            )
