"""AsyncProducer: sends messages to the partitions of topics from an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from conquiet.mq.send.message import Message
from conquiet.mq.send.producer import Producer
from conquiet.mq.topics import Topic
from conquiet.payload import Sendable
from conquiet.queue.connection import AsyncClient


class AsyncProducer:
    """`Producer` for an event loop: the same calls, checks, scripts and errors, awaited.

    Several tasks may use one at the same time.

    Examples:
        >>> import asyncio
        >>> async def ship_later(order_id):
        ...     opened = open_async_client(server.url)  # one for the application
        ...     try:
        ...         return await AsyncProducer(opened).send("shipments", {"order_id": order_id}, key="ann")
        ...     finally:
        ...         await opened.aclose()
        >>> entry_id = asyncio.run(ship_later(7))
    """

    def __init__(self, client: AsyncClient, **options: Any) -> None:
        """Send with this client; options are those of `Producer`."""
        # Not above: greenlets are an extra.
        from conquiet.greenlets import run_plain
        from conquiet.queue.awaiting_client import awaiting

        self._run = run_plain
        self._producer = Producer(awaiting(client), **options)

    async def send(
        self,
        topic: Topic | str,
        payload: Sendable,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay_ms: int = 0,
        partition: int | None = None,
        **options: Any,
    ) -> str:
        """As `Producer.send`; the other options, too."""
        send = self._producer.send
        return await self._run(send, topic, payload, key, headers, delay_ms, partition, **options)

    async def send_many(
        self, topic: Topic | str, messages: Iterable[Message | Sendable], *, batch_size: int = 1_000
    ) -> list[str]:
        """As `Producer.send_many`."""
        return await self._run(self._producer.send_many, topic, messages, batch_size=batch_size)

    def refresh(self) -> None:
        """As `Producer.refresh`."""
        self._producer.refresh()
