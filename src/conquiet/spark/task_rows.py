"""Rows of a DataFrame as tasks: the workers of a `TaskApp` run one for each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from conquiet.queue.connection import execute, visible_errors
from conquiet.queue.scripts import create_group
from conquiet.spark.dataframes import as_messages
from conquiet.tasks import TaskApp
from conquiet.tasks.envelope import TaskEnvelope
from conquiet.tasks.keys import GROUP, registry_key
from conquiet.tracing import Where, active_traces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The one id that no task has: an envelope with it shows where ids stand.
_ID = "\x00id"


def publish_tasks(
    df: DataFrame,
    *,
    url: str,
    task: str,
    columns: Sequence[str] | None = None,
    queue: str = "default",
    namespace: str = "tasks",
    task_options: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> None:
    """Enqueue one task for each row, each once over retried and speculative attempts of Spark's tasks.

    A task has a record, and so a state, from its end on.

    Args:
        task: the task's name, such as "shop.bill".
        columns: those that are its arguments, by their names; without it, all of them.
        task_options: of `TaskOptions`, such as `{"priority": 3, "max_retries": 5}`; neither a delay nor
            `unique_for_s`.
        options: more options of the data source, such as `dedupeId`.

    Examples:
        >>> rows = spark.range(3).select(F.col("id").alias("order_id"))
        >>> publish_tasks(rows, url=server.url, task="shop.bill", queue="bills")
    """
    rows = as_messages(df, columns=columns)
    # See `publish`: this makes the session active in the calling thread.
    df.sparkSession.createDataFrame([], "number int")
    with TaskApp(url, namespace=namespace) as app:
        call = app.call(task, {}, **{**(task_options or {}), "queue": queue})
        given = call.options
        if given.delay_s is not None or given.eta is not None or given.unique_for_s is not None:
            raise ValueError("rows become tasks that are due at once: give no delay_s, eta or unique_for_s")
        envelope = app.envelope(call)
        envelope.id = _ID
        stream = _open_stream(app, queue, envelope.priority)
        writer = rows.write.format("redis-stream").mode("append").options(url=url, stream=stream)
        traces = active_traces()
        if traces is None:
            _save(writer, app, envelope, options)
            return
        with traces.sending(Where(destination=queue)) as sending:
            envelope.headers = {**envelope.headers, **sending.headers[0]}
            _save(writer, app, envelope, options)


def _open_stream(app: TaskApp, queue: str, priority: int) -> str:
    """The stream of a queue's priority, with all that workers need to read it."""
    keys = app.keys(queue)
    stream = keys.streams[priority]
    with visible_errors("XGROUP CREATE", stream=stream, group=GROUP):
        execute(app.client, "SADD", registry_key(app.namespace), queue)
        create_group(app.client, stream, GROUP)
        # After the group: workers read a stream from then on.
        execute(app.client, "HSETNX", keys.meta, f"p{priority}", 1)
    return stream


def _save(writer: Any, app: TaskApp, envelope: TaskEnvelope, options: Mapping[str, str] | None) -> None:
    text = app.codec.encode(envelope).data.decode()
    before_id, _, rest = text.partition(json.dumps(_ID))
    before_args, mark, end = rest.partition('"args":{}')
    parts = [before_id, f"{before_args}{mark.removesuffix('{}')}", end]
    own = {"taskEnvelope": json.dumps(parts), "taskMaxBytes": str(app.codec.max_bytes)}
    writer.options(**{**dict(options or {}), **own}).save()
