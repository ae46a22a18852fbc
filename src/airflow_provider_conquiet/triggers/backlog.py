"""BacklogTrigger: the doorbell that rings while a group has messages before it, and consumes none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.triggers.backoff import Backoff
from airflow_provider_conquiet.triggers.thresholds import Backlog, Thresholds, stream_or_topic
from conquiet import QueueError, peek_backlog_async
from conquiet.mq import is_any_due_async, topic_streams_async
from conquiet.queue import AsyncClient

log = logging.getLogger(__name__)


class BacklogTrigger(BaseEventTrigger):
    """Rings when a threshold is reached, again every `ring_again_s` while it is, and only ever looks.

    It makes neither stream nor group, so a paused DAG, a restart or two triggerers cost nothing but a ring.
    While Redis is away it says so in the log and goes on.

    Args:
        min_lag: any one threshold that is reached rings; `min_lag=None` for age or pending alone.
        min_pending: count delivered and not acked messages too; without it they never ring.
        due_in: sorted sets of retries and delayed messages, by due time: one whose time has come rings too.
        ring_again_s: `None` ends the trigger with its first ring, as a deferred task needs it.
    """

    def __init__(
        self,
        *,
        stream: str | None = None,
        topic: str | None = None,
        group: str,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        min_lag: int | None = 1,
        min_pending: int | None = None,
        min_age_s: float | None = None,
        due_in: Sequence[str] = (),
        poll_interval_s: float = 1.0,
        ring_again_s: float | None = 30.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers are typed in part
        self._kind, self._name = stream_or_topic(stream, topic)
        self._thresholds = Thresholds(min_lag=min_lag, min_pending=min_pending, min_age_s=min_age_s)
        if poll_interval_s <= 0 or (ring_again_s is not None and ring_again_s <= 0):
            raise ValueError(f"intervals must be above 0, got {poll_interval_s!r} and {ring_again_s!r}")
        self.stream = stream
        self.topic = topic
        self.group = group
        self.due_in = list(due_in)
        self.redis_streams_conn_id = redis_streams_conn_id
        self.poll_interval_s = poll_interval_s
        self.ring_again_s = ring_again_s
        self._client: AsyncClient | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments that make this trigger again."""
        return (
            f"{BacklogTrigger.__module__}.{BacklogTrigger.__qualname__}",
            {
                "stream": self.stream,
                "topic": self.topic,
                "group": self.group,
                "redis_streams_conn_id": self.redis_streams_conn_id,
                "min_lag": self._thresholds.min_lag,
                "min_pending": self._thresholds.min_pending,
                "min_age_s": self._thresholds.min_age_s,
                "due_in": self.due_in,
                "poll_interval_s": self.poll_interval_s,
                "ring_again_s": self.ring_again_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ring as the class says; the event has names, counts and an age."""
        self._client = await RedisStreamsHook(self.redis_streams_conn_id).get_async_conn()
        quiet_until: float | None = None
        try:
            while True:
                backlog, is_any_due = await self._answer(self._client)
                if not is_any_due and not self._thresholds.are_reached_by(backlog):
                    quiet_until = None
                elif quiet_until is None or time.monotonic() >= quiet_until:
                    yield _ring(self._thresholds.event_of(backlog))
                    if self.ring_again_s is None:
                        return
                    quiet_until = time.monotonic() + self.ring_again_s
                await asyncio.sleep(self.poll_interval_s)
        finally:
            await self.cleanup()

    async def cleanup(self) -> None:
        """Close the client; a trigger that is cancelled at its `yield` never comes to its own end."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _answer(self, client: AsyncClient) -> tuple[Backlog, bool]:
        backoff = Backoff()
        while True:
            try:
                answer = await self._look(client), await is_any_due_async(client, self.due_in)
            except QueueError as error:
                wait_s = backoff.next_s()
                log.warning("%s; looking again in %.0f s", error, wait_s)
            else:
                _end_if_cancelled()
                return answer
            _end_if_cancelled()
            await asyncio.sleep(wait_s)

    async def _look(self, client: AsyncClient) -> Backlog:
        streams = [self._name] if self._kind == "stream" else await topic_streams_async(client, self._name)
        limit = self._thresholds.count_limit
        parts = [
            await peek_backlog_async(client, stream=stream, group=self.group, count_limit=limit)
            for stream in streams
        ]
        return Backlog.of(self._kind, self._name, self.group, parts)


def _end_if_cancelled() -> None:
    # redis-py waits with asyncio.wait_for, which before Python 3.12 may take a cancellation for itself.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _ring(event: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(event)  # type: ignore[no-untyped-call]  # Airflow's triggers are typed in part
