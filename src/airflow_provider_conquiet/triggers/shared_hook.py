"""SharedHook: one hook for all triggers of an event loop that work on one connection in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook

T = TypeVar("T")

#: How many triggers work at once, and so how many connections there are, however many wait.
_MOST_CONNECTIONS = 4


class SharedHook:
    """Lives until the last of its triggers has released it; triggers take turns at its few connections."""

    _opened: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedHook]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, key: str, hook: RedisStreamsHook) -> None:
        self._key = key
        self._hook = hook
        self._turns = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._users = 0
        self._connecting = asyncio.Lock()
        self._is_connected = False

    @classmethod
    async def of_connection(cls, conn_id: str) -> SharedHook:
        """The hook of this event loop for an Airflow connection; each caller releases it once.

        Raises:
            ValueError: the connection names no server.
        """
        hook = RedisStreamsHook(conn_id)
        # A connection that was changed is another one.
        key = f"{conn_id} {(await hook.aserver()).url}"
        hooks = cls._opened.setdefault(asyncio.get_running_loop(), {})
        shared = hooks.get(key)
        if shared is None:
            hooks[key] = shared = cls(key, hook)
        shared._users += 1
        return shared

    async def call(self, work: Callable[[RedisStreamsHook], T]) -> T:
        """What `work` returns, in a thread, when it is this trigger's turn."""
        async with self._turns:
            if not self._is_connected:
                # Two threads that connect at once would open two clients.
                async with self._connecting:
                    await in_thread(self._hook.get_conn)
                    self._is_connected = True
            return await in_thread(lambda: work(self._hook))

    async def release(self) -> None:
        """Close the client if no other trigger uses it."""
        self._users -= 1
        if self._users:
            return
        hooks = self._opened.get(asyncio.get_running_loop(), {})
        if hooks.get(self._key) is self:
            del hooks[self._key]
        await in_thread(self._hook.close)


async def in_thread(call: Callable[[], T]) -> T:
    """What a call returns that blocks: in a thread from which Airflow 3.1 finds its event loop."""
    return await sync_to_async(call, thread_sensitive=False)()
