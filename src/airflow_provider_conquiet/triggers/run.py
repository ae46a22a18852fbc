"""RunTrigger: keeps the messages of a run alive while it runs, and settles them with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_conquiet.run_messages import RunMessages
from airflow_provider_conquiet.run_state import RunState
from airflow_provider_conquiet.triggers.backlog import LONGEST_RETRY_S
from conquiet import QueueError

log = logging.getLogger(__name__)

T = TypeVar("T")


class RunTrigger(BaseTrigger):
    """Ends with one event when the run's other tasks have ended and its messages are acked or handed back.

    While Redis is unavailable it logs that and goes on. If its task is killed in Airflow, as when the run is
    marked as failed, it hands the messages back (Airflow 3.3 and later).

    Args:
        state: the fields of a `RunState`.
        messages: the fields of the `RunMessages`.
        poll_interval_s: how often the states of the run's tasks are read.

    Examples:
        >>> trigger = RunTrigger(  # what a deferred `AckByRunSensor` waits with
        ...     state={"dag_id": "ship", "run_id": "run-1", "task_id": "ack", "leaves": ["ship"]},
        ...     messages={
        ...         "redis_streams_conn_id": "redis_streams_default",
        ...         "stream": "parcels",
        ...         "group": "shipping",
        ...         "consumer": "airflow:ship",
        ...         "claim_idle_ms": 60_000,
        ...     },
        ...     poll_interval_s=5.0,
        ... )
    """

    def __init__(self, *, state: dict[str, Any], messages: dict[str, Any], poll_interval_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers are typed in part
        self._state = RunState(**state)
        self._messages = RunMessages(**messages)
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments that make this trigger again."""
        return (
            f"{RunTrigger.__module__}.{RunTrigger.__qualname__}",
            {
                "state": asdict(self._state),
                "messages": asdict(self._messages),
                "poll_interval_s": self.poll_interval_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Renew and ask, until the run is over but for this task."""
        renew_every_s = self._messages.claim_idle_ms / 3_000
        renewed_at, retry_s = -renew_every_s, 0.0
        while True:
            is_success = await _in_thread(self._state.will_succeed)
            try:
                if is_success is not None:
                    report = await _in_thread(self._messages.settle, is_success=is_success)
                    yield TriggerEvent(report)  # type: ignore[no-untyped-call]
                    return
                if time.monotonic() - renewed_at >= renew_every_s:
                    await _in_thread(self._messages.keep)
                    renewed_at = time.monotonic()
                retry_s = 0.0
            except QueueError as error:
                retry_s = min(2 * retry_s or 1.0, LONGEST_RETRY_S)
                log.warning("%s; trying again in %.0f s", error, retry_s)
            await asyncio.sleep(retry_s or min(self.poll_interval_s, renew_every_s))

    async def on_kill(self) -> None:
        """Settle the messages if the run is over: hand them back, unless it was marked as a success.

        While other tasks run, this one alone was marked or cleared: it may begin again.
        """
        is_success = await _in_thread(self._state.end_when_killed)
        if is_success is not None:
            await _in_thread(self._messages.settle, is_success=is_success)


async def _in_thread(call: Callable[..., T], **arguments: Any) -> T:
    """What a call returns that asks Airflow: in a thread from which Airflow 3.1 finds its event loop."""
    return await sync_to_async(call, thread_sensitive=False)(**arguments)
