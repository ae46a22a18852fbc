"""BacklogTrigger: the doorbell that rings while a group has a backlog, and consumes nothing."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Unpack

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_conquiet.airflow_names import AirflowNotFoundException
from airflow_provider_conquiet.arguments import stream_or_topic
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.triggers.shared_client import SharedClient
from airflow_provider_conquiet.triggers.thresholds import ThresholdArguments, Thresholds
from conquiet import QueueError, peek_backlog_async
from conquiet.mq import is_any_due_async, topic_streams_async, total_backlog
from conquiet.queue import AsyncClient
from conquiet.queue.backlog import has_nothing_to_read_async

log = logging.getLogger(__name__)

#: A connection that somebody has to create or correct.
CONNECTION_MISTAKES = (AirflowNotFoundException, ValueError)
#: While Redis does not answer, it is asked again after 1 s, 2 s, and so on up to this.
LONGEST_RETRY_S = 30.0


class BacklogTrigger(BaseEventTrigger):
    """Rings when a threshold is reached, again every `ring_again_s` while it is, and only ever reads.

    It creates neither stream nor group, so a paused DAG, a restart or two triggerers cost nothing but a ring.
    While Redis is unavailable it logs that and goes on. All triggers of a triggerer that use one connection
    share its few connections to Redis.

    Args:
        min_lag: 1 unless given; any one threshold that is reached rings. `None` for age or pending alone.
        min_pending: count delivered and not acked messages too; without it they never ring.
        min_age_s: seconds since the oldest message that counts was enqueued.
        min_idle_s: ring also if a consumer with pending messages was not seen for so many seconds; for DAGs
            that claim what is stale, or take messages for a run.
        due_in: sorted sets of retries and delayed messages, by due time: one that is due rings too.
        ring_again_s: `None` ends the trigger with its first ring, as a deferred task needs it.
        latest_s: ring after this time without a threshold, too; `None` for never.

    Examples:
        >>> doorbell = BacklogTrigger(stream="orders", group="billing")
        >>> waiting = Asset("orders_waiting", watchers=[AssetWatcher(name="doorbell", trigger=doorbell)])
    """

    def __init__(
        self,
        *,
        stream: str | None = None,
        topic: str | None = None,
        group: str,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        due_in: Sequence[str] = (),
        poll_interval_s: float = 1.0,
        ring_again_s: float | None = 30.0,
        latest_s: float | None = None,
        **thresholds: Unpack[ThresholdArguments],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers are typed in part
        self._kind, self._name = stream_or_topic(stream, topic)
        self._thresholds = Thresholds(**thresholds)
        if poll_interval_s <= 0 or (ring_again_s is not None and ring_again_s <= 0):
            raise ValueError(f"intervals must be above 0, got {poll_interval_s!r} and {ring_again_s!r}")
        self.stream = stream
        self.topic = topic
        self.group = group
        self.due_in = list(due_in)
        self.redis_streams_conn_id = redis_streams_conn_id
        self.poll_interval_s = poll_interval_s
        self.ring_again_s = ring_again_s
        self.latest_s = latest_s
        self._client: SharedClient | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments that make this trigger again."""
        return (
            f"{BacklogTrigger.__module__}.{BacklogTrigger.__qualname__}",
            {
                "stream": self.stream,
                "topic": self.topic,
                "group": self.group,
                "redis_streams_conn_id": self.redis_streams_conn_id,
                "due_in": self.due_in,
                "poll_interval_s": self.poll_interval_s,
                "ring_again_s": self.ring_again_s,
                "latest_s": self.latest_s,
                **asdict(self._thresholds),
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ring as the class says; the event has names, counts and an age."""
        self._client = await self._connected()
        quiet_until: float | None = None
        latest = math.inf if self.latest_s is None else time.monotonic() + self.latest_s
        retry_s = 0.0
        event: dict[str, Any] | None = None
        try:
            while True:
                try:
                    is_late = time.monotonic() >= latest
                    event = await self._client.call(partial(self._event, is_late=is_late))
                    retry_s = 0.0
                except QueueError as error:
                    retry_s = min(2 * retry_s or 1.0, LONGEST_RETRY_S)
                    log.warning("%s; trying again in %.0f s", error, retry_s)
                if retry_s:
                    await asyncio.sleep(retry_s)
                    continue
                if event is None:
                    quiet_until = None
                elif quiet_until is None or time.monotonic() >= quiet_until:
                    yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                    if self.ring_again_s is None:
                        return
                    quiet_until = time.monotonic() + self.ring_again_s
                await asyncio.sleep(self.poll_interval_s)
        finally:
            await self.cleanup()

    async def cleanup(self) -> None:
        """Give the client back; a trigger that is cancelled at its `yield` never comes to its own end."""
        client, self._client = self._client, None
        if client is not None:
            await client.release()

    async def _connected(self) -> SharedClient:
        """A client; a watcher whose connection is missing or wrong waits for it, a task fails."""
        retry_s = 0.0
        while True:
            try:
                return await SharedClient.of_connection(self.redis_streams_conn_id)
            except CONNECTION_MISTAKES as error:
                if self.ring_again_s is None:
                    raise
                retry_s = min(2 * retry_s or 1.0, LONGEST_RETRY_S)
                log.error("nothing is watched: %s; trying again in %.0f s", error, retry_s)  # noqa: TRY400
                await asyncio.sleep(retry_s)

    async def _event(self, client: AsyncClient, *, is_late: bool) -> dict[str, Any] | None:
        """What to ring with, or `None`; one command for a stream that has nothing, as most polls find it."""
        streams = [self._name] if self._kind == "stream" else await topic_streams_async(client, self._name)
        rings = is_late or await is_any_due_async(client, self.due_in)
        if not rings and await self._have_nothing(client, streams):
            return None
        limit = self._thresholds.count_limit
        parts = [
            await peek_backlog_async(client, stream=stream, group=self.group, count_limit=limit)
            for stream in streams
        ]
        backlog = total_backlog(self._name, self.group, parts)
        is_reached = rings or self._thresholds.are_reached_by(backlog)
        return self._thresholds.event_of(self._kind, backlog) if is_reached else None

    async def _have_nothing(self, client: AsyncClient, streams: Sequence[str]) -> bool:
        counts_pending = self._thresholds.counts_pending
        for stream in streams:
            names = {"stream": stream, "group": self.group}
            if not await has_nothing_to_read_async(client, **names, counts_pending=counts_pending):
                return False
        return True
