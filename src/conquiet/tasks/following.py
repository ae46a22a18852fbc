"""Following a task to its end, with a log line for each change of its state; for callers that wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from conquiet.tasks.errors import PayloadError, TaskFailedError
from conquiet.tasks.record import TaskState, TaskStatus
from conquiet.tasks.results import AsyncRedisResults, RedisResults

#: Called with a sentence for each change.
Report = Callable[[str], object]

#: The record is read again after this time: the start of a task and its progress are no events.
_LOOK_EVERY_S = 5.0
#: On a queue with many events, no more often than this.
_PAUSE_S = 0.2


def follow(results: RedisResults, task_id: str, queue: str, report: Report) -> TaskStatus | None:
    """Wait for the end of a task, blocking on the server; `None` if its record is gone."""
    last = ""
    while True:
        position = results.events_position(queue)
        status = results.status(task_id, queue)
        last = _report_change(status, last, report)
        if status is None or status.state.is_final:
            return status
        results.wait_for_event(queue, position, _LOOK_EVERY_S)
        time.sleep(_PAUSE_S)


async def follow_async(
    results: AsyncRedisResults, task_id: str, queue: str, report: Report
) -> TaskStatus | None:
    """As `follow`, for an event loop."""
    last = ""
    while True:
        position = await results.events_position(queue)
        status = await results.status(task_id, queue)
        # redis-py waits with asyncio.wait_for, which before Python 3.12 may swallow a cancellation.
        waiting = asyncio.current_task()
        if waiting is not None and waiting.cancelling():
            raise asyncio.CancelledError
        last = _report_change(status, last, report)
        if status is None or status.state.is_final:
            return status
        await results.wait_for_event(queue, position, _LOOK_EVERY_S)
        await asyncio.sleep(_PAUSE_S)


def result_of(task_id: str, status: TaskStatus | None) -> Any:
    """What a task that has ended returned, as JSON.

    Raises:
        TaskFailedError: it failed, was revoked or has expired, or its record is gone.
        PayloadError: its result is in a payload store, which is not known here.
    """
    if status is None:
        error = "it has no record any more: the server has lost it, or its result_ttl_s has passed"
        raise TaskFailedError(task_id, state="unknown", error=error)
    if status.state is not TaskState.SUCCEEDED:
        raise TaskFailedError(task_id, state=status.state, error=status.error or "no error is known")
    if status.stored is not None:
        reason = f"the result of task {task_id} is in the payload store of its app, which is not known here"
        raise PayloadError(status.stored.key, f"{reason}; it has {status.stored.size:,} bytes")
    return status.result


def result_bytes(value: Any) -> int:
    """How large a result is as JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def sentence_of(status: TaskStatus) -> str:
    """The state of a task in one line, without its arguments and its result."""
    sentence = f"task {status.id} ({status.name}) in queue {status.queue!r} is {status.state}"
    if status.state is TaskState.RUNNING and status.worker:
        sentence += f" on worker {status.worker}"
    if status.state is not TaskState.QUEUED:
        sentence += f", attempt {status.attempt}"
    if status.state is TaskState.SUCCEEDED:
        size = result_bytes(status.result) if status.stored is None else status.stored.size
        return f"{sentence}, its result has {size:,} bytes"
    if status.state is TaskState.RUNNING and status.progress is not None:
        text = f": {status.progress_text}" if status.progress_text else ""
        return f"{sentence}, {status.progress:.0%}{text}"
    return f"{sentence}: {status.error}" if status.error else sentence


def _report_change(status: TaskStatus | None, last: str, report: Report) -> str:
    sentence = last if status is None else sentence_of(status)
    if sentence != last:
        report(sentence)
    return sentence
