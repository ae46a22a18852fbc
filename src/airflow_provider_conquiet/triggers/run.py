"""RunTrigger: keeps the messages of a run alive while it runs, and settles them with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from functools import partial
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_conquiet.run_messages import RunMessages
from airflow_provider_conquiet.run_state import RunState
from airflow_provider_conquiet.triggers.backlog import LONGEST_RETRY_S
from airflow_provider_conquiet.triggers.shared_hook import SharedHook, in_thread
from conquiet import QueueError

log = logging.getLogger(__name__)


class RunTrigger(BaseTrigger):
    """Ends with one event when the run's other tasks have ended and its messages are acked or handed back.

    While Redis or Airflow's API is unavailable it logs that and goes on. If its task is killed in Airflow, as
    when the run is marked as failed, it hands the messages back (Airflow 3.3 and later). All triggers of a
    triggerer that use one connection share its few connections to Redis.

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
        self._hook: SharedHook | None = None

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
        self._hook = await SharedHook.of_connection(self._messages.redis_streams_conn_id)
        try:
            while True:
                try:
                    # First, since it needs no more than Redis: another run must not take them meanwhile.
                    if time.monotonic() - renewed_at >= renew_every_s:
                        await self._hook.call(self._messages.keep)
                        renewed_at = time.monotonic()
                    is_success = await in_thread(self._state.will_succeed)
                    if is_success is not None:
                        report = await self._hook.call(partial(self._messages.settle, is_success=is_success))
                        yield TriggerEvent(report)  # type: ignore[no-untyped-call]
                        return
                    retry_s = 0.0
                except (QueueError, AirflowRuntimeError) as error:
                    retry_s = min(2 * retry_s or 1.0, LONGEST_RETRY_S)
                    log.warning("%s; trying again in %.0f s", error, retry_s)
                await asyncio.sleep(min(retry_s or self.poll_interval_s, renew_every_s))
        finally:
            await self.cleanup()

    async def on_kill(self) -> None:
        """Settle the messages if the run is over: hand them back, unless it was marked as a success.

        While other tasks run, this one alone was marked or cleared: it may begin again.
        """
        is_success = await in_thread(self._state.end_when_killed)
        if is_success is None:
            return
        # Of its own: it may be called after `cleanup`.
        hook = await SharedHook.of_connection(self._messages.redis_streams_conn_id)
        try:
            await hook.call(partial(self._messages.settle, is_success=is_success))
        finally:
            await hook.release()

    async def cleanup(self) -> None:
        """Give the hook back; a trigger that is cancelled at its `yield` never comes to its own end."""
        hook, self._hook = self._hook, None
        if hook is not None:
            await hook.release()
