"""What a process with an event loop, as Airflow's triggerer, needs to know of topics; read-only."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import RedisCluster as AsyncRedisCluster

from conquiet.mq.keys import RegistryKeys, TopicKeys
from conquiet.mq.topics import Topic, layout_of, name_of
from conquiet.queue.connection import AS_BYTES, AsyncClient, visible_errors


async def topic_streams_async(client: AsyncClient, topic: Topic | str) -> list[str]:
    """The stream keys of a topic's partitions, in order; of a plain stream, its own name.

    Examples:
        >>> import asyncio
        >>> async def streams():
        ...     opened = open_async_client(server.url)
        ...     try:
        ...         return await topic_streams_async(opened, "shipments")
        ...     finally:
        ...         await opened.aclose()
        >>> asyncio.run(streams())
        ['stream:topic:shipments:p:0', 'stream:topic:shipments:p:1']
    """
    name = name_of(topic)
    keys = RegistryKeys(isinstance(client, AsyncRedisCluster))
    with visible_errors("open", stream=name, group=None):
        count, layout, version = await client.execute_command(
            "HMGET", keys.meta(name), "partitionCount", "layout", "schemaVersion", **AS_BYTES
        )
    if count is None:
        return [name]
    found = TopicKeys(name, layout_of(name, layout, version))
    return [found.stream(partition) for partition in range(int(count))]


async def is_any_due_async(client: AsyncClient, keys: Sequence[str]) -> bool:
    """Whether something in one of these sorted sets is due; changes nothing.

    Args:
        keys: `TopicKeys.waiting` and `TopicKeys.delayed` of what one consumes.

    Examples:
        >>> import asyncio
        >>> async def is_retry_due(group):
        ...     opened = open_async_client(server.url)
        ...     try:
        ...         keys = [topic.keys.waiting(group, partition) for partition in topic.partitions]
        ...         return await is_any_due_async(opened, keys)
        ...     finally:
        ...         await opened.aclose()
        >>> asyncio.run(is_retry_due("nobody"))
        False
    """
    for key in keys:
        with visible_errors("read due times", stream=key, group=None):
            seconds, microseconds = await client.execute_command("TIME", **AS_BYTES)
            now_ms = int(seconds) * 1000 + int(microseconds) // 1000
            first = ("ZRANGEBYSCORE", key, "-inf", now_ms, "LIMIT", 0, 1)
            if await client.execute_command(*first, **AS_BYTES):
                return True
    return False
