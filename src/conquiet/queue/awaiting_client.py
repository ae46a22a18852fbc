"""A client of redis.asyncio as a plain one, for code that runs by `run_plain`."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from conquiet.greenlets import await_here
from conquiet.masking import shown
from conquiet.queue.connection import AsyncClient, Client, is_read_only


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
    def __init__(self, pipeline: Any, pool: Any = None) -> None:
        self._pipeline = pipeline
        #: `None` of a cluster.
        self._pool = pool

    def __getattr__(self, command: str) -> Any:
        # Commands only: they are collected, and sent by `execute`.
        return getattr(self._pipeline, command)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        replies: list[Any] = await_here(self._pipeline.execute(raise_on_error=raise_on_error))
        if self._pool is not None and any(
            isinstance(one, Exception) and is_read_only(one) for one in replies
        ):
            _leave_replica(self._pool)
        return replies


def _leave_replica(pool: Any) -> None:
    # As `forget_connections`: after a failover they lead to what was the primary before.
    await_here(pool.disconnect(inuse_connections=False))


class _AwaitingRedis(redis.Redis):
    def __init__(self, client: redis.asyncio.Redis) -> None:
        # Nothing of the parent's, which has connections of its own: its commands come to `execute_command`.
        self._awaited = client
        self.connection_pool = _Pool(client.connection_pool)  # type: ignore[assignment]
        self.connection = None

    def execute_command(self, *command: Any, **options: Any) -> Any:
        try:
            return await_here(self._awaited.execute_command(*command, **options))
        except ResponseError as error:
            if is_read_only(error):
                _leave_replica(self._awaited.connection_pool)
            raise

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        pipeline = self._awaited.pipeline(transaction=transaction)
        return _AwaitingPipeline(pipeline, self._awaited.connection_pool)

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
