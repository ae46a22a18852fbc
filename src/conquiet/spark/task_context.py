"""What a task of Spark knows of itself: which one it is, and of a streaming query which batch."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext

#: Local properties. The query's id is kept by the checkpoint: a new checkpoint is a new query, whose batches
#: are numbered from 0 again.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which write, which batch of it, which task: what all attempts of a task have in common."""

    write_id: str
    batch: int
    task: int
    #: Of a write that may be run again: which run this is.
    run: int | None = None


def current_task() -> TaskContext:
    """The context of the task that calls.

    Raises:
        RuntimeError: no task of Spark does.
    """
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("this runs in a task of Spark only")
    return task
