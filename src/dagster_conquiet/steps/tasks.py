"""One task in one step: enqueued once over all attempts at the step, waited for, revoked with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from conquiet.tasks import TaskApp, TaskHandle, TaskStatus
from conquiet.tasks.following import follow, result_bytes, result_of
from conquiet.tasks.work import Work
from dagster_conquiet.resources import RedisStreamsResource
from dagster_conquiet.steps.attempts import Context, attempt_of
from dagster_conquiet.steps.metadata import Metadata, task_link
from dagster_conquiet.task_spec import TaskSpec

#: Retries of a step in one run after which a task of them may be overlooked, if all before it have expired.
_MOST_RETRIES = 32


def run_task_in_step(context: Context, spec: TaskSpec, args: Mapping[str, Any]) -> tuple[Any, Metadata]:
    """Enqueue the task, or find that of an earlier attempt, and wait for its result.

    Raises:
        TaskFailedError: the task failed, was revoked or has expired.
    """
    attempt, redis_streams = attempt_of(context), spec.resources.redis_of(context)
    with attempt.span(), _open_app(redis_streams, spec.namespace) as app:
        call = app.call(spec.task, args, **{**spec.options, "queue": spec.queue})
        # More than there can have been: nobody knows how often a step was retried in earlier runs.
        tries = attempt.retry_number + 1 + _MOST_RETRIES * len(attempt.earlier_runs)
        work = Work(name=f"dagster:{attempt.work_id}", tries=tries, attach=spec.attach)
        handle = work.enqueue(app, call)
        try:
            words = "enqueued" if handle.is_new else "found, as an earlier attempt has enqueued it:"
            context.log.info("%s task %s (%s) in queue %r", words, handle.id, spec.task, handle.queue)
            status = follow(app.results, handle.id, handle.queue, context.log.info)
        except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt):
            # By another connection: this one may be owed the reply that was waited for.
            with _open_app(redis_streams, spec.namespace) as another:
                another.revoke(handle.id, handle.queue, terminate=True)
            words = "task %s in queue %r is revoked, as its step was cancelled"
            context.log.info(words, handle.id, handle.queue)
            raise
        return result_of(handle.id, status), _metadata(handle, status)


def _open_app(redis_streams: RedisStreamsResource, namespace: str) -> TaskApp:
    return TaskApp(redis_streams.url_with_files(), namespace=namespace)


def _metadata(handle: TaskHandle, status: TaskStatus | None) -> Metadata:
    metadata: Metadata = {
        "task_id": dg.MetadataValue.text(handle.id),
        "task_queue": dg.MetadataValue.text(handle.queue),
        **task_link(handle.queue, handle.id),
    }
    if status is None:
        return metadata
    metadata["attempts"] = dg.MetadataValue.int(status.attempt + 1)
    metadata["result_bytes"] = dg.MetadataValue.int(result_bytes(status.result))
    if status.worker:
        metadata["worker"] = dg.MetadataValue.text(status.worker)
    if len(status.history) > 1:
        seconds = (status.history[-1].at - status.history[0].at).total_seconds()
        metadata["seconds"] = dg.MetadataValue.float(round(seconds, 3))
    return metadata
