"""SharedClient: one client of Redis for all triggers of an event loop that use one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from conquiet.queue import AsyncClient, open_async_client

T = TypeVar("T")

#: How many triggers ask at once, and so how many connections there are to a node, however many wait.
_MOST_CONNECTIONS = 4


class SharedClient:
    """Lives until the last of its triggers has released it; triggers take turns at its few connections."""

    _opened: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedClient]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = open_async_client(url)
        self._turns = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._users = 0

    @classmethod
    async def of_connection(cls, conn_id: str) -> SharedClient:
        """The client of this event loop for an Airflow connection; each caller releases it once.

        Raises:
            ValueError: the connection names no server, or files that are not on this machine.
        """
        server = await RedisStreamsHook(conn_id).aserver()
        server.check_files()
        # Nothing is awaited from here on: two triggers that begin at once get one client.
        clients = cls._opened.setdefault(asyncio.get_running_loop(), {})
        client = clients.get(server.url)
        if client is None:
            clients[server.url] = client = cls(server.url)
        client._users += 1
        return client

    async def call(self, ask: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """What `ask` gets from the server, when it is this trigger's turn."""
        try:
            async with self._turns:
                return await ask(self._client)
        finally:
            # redis-py waits with asyncio.wait_for, which before Python 3.12 may swallow a cancellation.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError

    async def release(self) -> None:
        """Close the client if no other trigger uses it."""
        self._users -= 1
        if self._users:
            return
        clients = self._opened.get(asyncio.get_running_loop(), {})
        if clients.get(self._url) is self:
            del clients[self._url]
        await self._client.aclose()
