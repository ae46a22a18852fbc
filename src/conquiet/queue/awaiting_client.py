"""A client of redis.asyncio as a plain one, for code that runs by `run_plain`."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.cluster import RedisCluster

from conquiet.greenlets import await_here
from conquiet.masking import shown
from conquiet.queue.connection import AsyncClient, Client


def awaiting(client: AsyncClient) -> Client:
    """A plain client over the same connections; each of its calls awaits.

    Raises:
        TypeError: it is no client for an event loop.
    """
    if isinstance(client, redis.asyncio.RedisCluster):
        return _AwaitingCluster(client)
    if isinstance(client, redis.asyncio.Redis):
        return _AwaitingRedis(client)
    if isinstance(client, Client):
        raise TypeError(
            "client must be one of redis.asyncio, as `open_async_client(url)` makes it; for a plain one "
            "there are StreamWriter, RedisStreamsQueue and Producer"
        )
    remedy = "; `open_async_client(url)` makes one"
    raise TypeError(f"client must be one of redis.asyncio, got {shown(client)}{remedy}")


class _Pool:
    """What plain code asks of a pool; the connection of a task that is cancelled redis-py drops itself."""

    cache = None

    def __init__(self, pool: Any) -> None:
        self.connection_kwargs = pool.connection_kwargs
        self.connection_class = pool.connection_class

    def disconnect(self, *, inuse_connections: bool = True) -> None:
        """Nothing: see above."""


class _AwaitingPipeline:
    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def __getattr__(self, command: str) -> Any:
        # Commands only: they are collected, and sent by `execute`.
        return getattr(self._pipeline, command)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        replies: list[Any] = await_here(self._pipeline.execute(raise_on_error=raise_on_error))
        return replies


class _AwaitingRedis(redis.Redis):
    def __init__(self, client: redis.asyncio.Redis) -> None:
        # Nothing of the parent's, which has connections of its own: its commands come to `execute_command`.
        self._awaited = client
        self.connection_pool = _Pool(client.connection_pool)  # type: ignore[assignment]
        self.connection = None

    def execute_command(self, *command: Any, **options: Any) -> Any:
        return await_here(self._awaited.execute_command(*command, **options))

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        return _AwaitingPipeline(self._awaited.pipeline(transaction=transaction))

    def close(self) -> None:
        """Nothing: the client is closed by the code that opened it."""


class _AwaitingCluster(RedisCluster):
    def __init__(self, client: redis.asyncio.RedisCluster) -> None:
        # As above.
        self._awaited = client

    def execute_command(self, *command: Any, **options: Any) -> Any:
        return await_here(self._awaited.execute_command(*command, **options))

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Any:
        return _AwaitingPipeline(self._awaited.pipeline(transaction=bool(transaction)))

    def get_node_from_key(self, key: str, replica: bool = False) -> Any:
        return self._awaited.get_node_from_key(key, replica)

    def get_nodes(self) -> Any:
        """None whose connections plain code could drop."""
        return []

    def get_default_node(self) -> Any:
        return self._awaited.get_default_node()

    def close(self) -> None:
        """Nothing: the client is closed by the code that opened it."""
