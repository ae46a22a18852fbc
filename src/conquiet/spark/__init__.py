"""Spark and streams: the data source `redis-stream`, and what DataFrames need around it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from conquiet.exports import lazy_exports
from conquiet.extras import needs_extra

if TYPE_CHECKING:
    from conquiet.spark.database_sink import drain_batch as drain_batch
    from conquiet.spark.dataframes import as_messages as as_messages, publish as publish, unpack as unpack
    from conquiet.spark.errors import (
        DataLossError as DataLossError,
        MalformedRowsError as MalformedRowsError,
        RowsDifferError as RowsDifferError,
        RowsLostError as RowsLostError,
    )
    from conquiet.spark.query_metrics import (
        QueryMetrics as QueryMetrics,
        SourceBacklog as SourceBacklog,
        source_backlogs as source_backlogs,
    )
    from conquiet.spark.task_rows import publish_tasks as publish_tasks
    from conquiet.spark.source import RedisStreamSource as RedisStreamSource, register as register

# On first use: a worker of Spark needs one module of this package, not all that the driver needs.
_NAMES_OF = {
    "database_sink": "drain_batch",
    "dataframes": "as_messages publish unpack",
    "errors": "DataLossError MalformedRowsError RowsDifferError RowsLostError",
    "source": "RedisStreamSource register",
    "query_metrics": "QueryMetrics SourceBacklog source_backlogs",
    "task_rows": "publish_tasks",
}

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    _NAMES_OF,
    importing=partial(needs_extra, "spark", "pyspark", "pyarrow", "pandas", part="conquiet.spark"),
)
