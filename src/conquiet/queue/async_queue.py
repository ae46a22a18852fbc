"""AsyncQueue: adds messages to one stream from an event loop, as a web application does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from conquiet.errors import QueueError
from conquiet.payload import PayloadCodec, Sendable
from conquiet.queue.connection import AsyncClient, open_async_client, visible_errors
from conquiet.queue.writer import StreamWriter

_T = TypeVar("_T")


class AsyncQueue:
    """`StreamWriter` for an event loop: the same calls, checks, scripts and errors, awaited.

    Several tasks may use one at the same time.

    Examples:
        >>> import asyncio
        >>> async def place(order_id):
        ...     opened = open_async_client(server.url)  # one for the application, as in FastAPI's lifespan
        ...     try:
        ...         return await AsyncQueue(opened, "orders").enqueue({"order_id": order_id})
        ...     finally:
        ...         await opened.aclose()
        >>> asyncio.run(place(7))
        '1...-0'
    """

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        *,
        min_replicas: int = 0,
        replica_timeout_ms: int = 1_000,
        fsync: bool = False,
        codec: PayloadCodec | None = None,
    ) -> None:
        """Write to the stream; arguments are those of `StreamWriter`."""
        # Not above: greenlets are an extra.
        from conquiet.greenlets import run_plain
        from conquiet.queue.awaiting_client import awaiting

        self._run = run_plain
        self.client = client
        self._closes_client = False
        self._is_closed = False
        self._writer = StreamWriter(
            awaiting(client),
            stream,
            min_replicas=min_replicas,
            replica_timeout_ms=replica_timeout_ms,
            fsync=fsync,
            codec=codec,
        )

    @classmethod
    def from_url(cls, url: str, stream: str, *, codec: PayloadCodec | None = None, **options: Any) -> Self:
        """Open a client without retries, as `RedisStreamsQueue.from_url` does; `aclose()` closes it."""
        with visible_errors("connect", stream=stream, group=None):
            queue = cls(open_async_client(url, **options), stream, codec=codec)
        queue._closes_client = True
        return queue

    async def enqueue(self, payload: Sendable) -> str:
        """Add one message and return its entry id."""
        return await self._call(self._writer.enqueue, payload)

    async def enqueue_many(self, payloads: Iterable[Sendable], *, batch_size: int = 1_000) -> list[str]:
        """Add messages in order, `batch_size` to a round trip; if one payload is refused, none is added."""
        return await self._call(self._writer.enqueue_many, payloads, batch_size=batch_size)

    async def enqueue_once(
        self, payloads: Iterable[Sendable], *, dedupe_id: str, window_ms: int = 24 * 3_600_000
    ) -> list[str]:
        """As `StreamWriter.enqueue_once`: a second call with this id returns the first one's entry ids."""
        options: dict[str, Any] = {"dedupe_id": dedupe_id, "window_ms": window_ms}
        return await self._call(self._writer.enqueue_once, payloads, **options)

    async def aclose(self) -> None:
        """Close the client if `from_url` made it."""
        if self._closes_client:
            self._is_closed = True
            await self.client.aclose()

    async def _call(self, function: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
        if self._is_closed:
            # redis-py would open a new connection, which nobody would close.
            reason = "it is closed: aclose() was called, or its `async with` block has ended"
            raise QueueError(function.__name__, stream=self._writer.stream, group=None, reason=reason)
        return await self._run(function, *arguments, **named)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()
