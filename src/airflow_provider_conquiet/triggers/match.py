"""MatchTrigger: waits in the triggerer until a message matches, and consumes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_conquiet.message_search import MessageSearch
from airflow_provider_conquiet.triggers.backlog import LONGEST_RETRY_S
from airflow_provider_conquiet.triggers.shared_client import SharedClient
from conquiet import QueueError

log = logging.getLogger(__name__)


class MatchTrigger(BaseTrigger):
    """Ends with one event that names the first message that matches.

    While Redis is unavailable it logs that and goes on.

    Args:
        after: the entry id after which each stream is read.
        is_topic: the streams are partitions of a topic: what is matched is the payload.
        redis_streams_conn_id: a connection of type `redis_streams`, `redis` or `rediss`.
        poll_interval_s: how often new messages are read.
        match: "package.module:function", quick and without I/O: it runs in the triggerer.
        equals: instead of `match`, payload fields and the values they must have.

    Examples:
        >>> trigger = MatchTrigger(  # what a deferred `MessageSensor` waits with
        ...     after={"tills": "0-0"},
        ...     is_topic=False,
        ...     redis_streams_conn_id="redis_streams_default",
        ...     poll_interval_s=1.0,
        ...     equals={"event": "closed"},
        ... )
    """

    def __init__(
        self,
        *,
        after: Mapping[str, str],
        is_topic: bool,
        redis_streams_conn_id: str,
        poll_interval_s: float,
        match: str | None = None,
        equals: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers are typed in part
        self.after = dict(after)
        self.is_topic = is_topic
        self.redis_streams_conn_id = redis_streams_conn_id
        self.poll_interval_s = poll_interval_s
        self.match = match
        self.equals = equals
        self._client: SharedClient | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments that make this trigger again."""
        return (
            f"{MatchTrigger.__module__}.{MatchTrigger.__qualname__}",
            {
                "after": self.after,
                "is_topic": self.is_topic,
                "redis_streams_conn_id": self.redis_streams_conn_id,
                "poll_interval_s": self.poll_interval_s,
                "match": self.match,
                "equals": self.equals,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Search what is new, until something matches."""
        search = MessageSearch(dict(self.after), self.is_topic, self.match, self.equals)
        search.load()
        self._client = await SharedClient.of_connection(self.redis_streams_conn_id)
        retry_s = 0.0
        try:
            while True:
                try:
                    found = await self._client.call(search.find_async)
                    retry_s = 0.0
                except QueueError as error:
                    found, retry_s = None, min(2 * retry_s or 1.0, LONGEST_RETRY_S)
                    log.warning("%s; trying again in %.0f s", error, retry_s)
                if found is not None:
                    stream, entry_id = found
                    event = {"stream": stream, "id": entry_id}
                    yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                    return
                await asyncio.sleep(retry_s or self.poll_interval_s)
        finally:
            await self.cleanup()

    async def cleanup(self) -> None:
        """Give the client back; a trigger that is cancelled at its `yield` never comes to its own end."""
        client, self._client = self._client, None
        if client is not None:
            await client.release()
