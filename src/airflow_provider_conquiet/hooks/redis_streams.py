"""RedisStreamsHook: queues, topics and the application's database, from one Airflow connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self

from airflow.sdk import BaseHook
from redis.cluster import RedisCluster
from sqlalchemy import Engine

from airflow_provider_conquiet.airflow_names import get_hook_lineage_collector
from airflow_provider_conquiet.assets.redis_stream import stream_uri
from airflow_provider_conquiet.hooks.connection_test import try_connection
from airflow_provider_conquiet.hooks.server import Server
from airflow_provider_conquiet.hooks.server_errors import CONNECT_ERRORS, ServerConnectionError
from airflow_provider_conquiet.hooks.stored_connection import StoredConnection
from conquiet import BacklogStats, QueueConfig, QueueMessage, RedisStreamsQueue, StreamWriter
from conquiet.mq import Message, Producer, Topic, Topics
from conquiet.mq.topics import name_of
from conquiet.payload import Sendable
from conquiet.queue import AsyncClient, Client, open_async_client, open_client, peek_backlog
from conquiet.queue.backlog import COUNT_LIMIT
from conquiet.queue.scripts import Added

ONE_DAY_MS = 24 * 3_600_000


class RedisStreamsHook(BaseHook):
    """One connection of type `redis_streams`, `redis` or `rediss`; its client is opened when first used.

    `close()`, or the end of a `with` block, closes the client, and with it every queue and topic of the hook.

    Args:
        db_conn_id: the connection of the application's database, instead of the one that it names itself.

    Examples:
        >>> hook = RedisStreamsHook("redis_streams_default")  # connects when it is first used
        >>> hook.redis_streams_conn_id
        'redis_streams_default'
    """

    conn_name_attr = "redis_streams_conn_id"
    default_conn_name = "redis_streams_default"
    conn_type = "redis_streams"
    hook_name = "Redis Streams (conquiet)"

    def __init__(
        self, redis_streams_conn_id: str = default_conn_name, *, db_conn_id: str | None = None
    ) -> None:
        super().__init__()
        self.redis_streams_conn_id = redis_streams_conn_id
        self._connection = StoredConnection(redis_streams_conn_id, db_conn_id=db_conn_id)
        self._client: Client | None = None

    @property
    def server(self) -> Server:
        """The server that the connection names."""
        return self._connection.server

    @property
    def url(self) -> str:
        """The server's URL, with its password."""
        return self.server.url

    def get_conn(self) -> Client:
        """The client of this hook, one for all of its queues; it has reached its server.

        Raises:
            ConnectionFieldError: the connection names no server, or files that are not on this machine.
            ServerConnectionError: the server does not answer, or does not let the client in.
        """
        if self._client is None:
            self.server.check_files()
            try:
                client = open_client(self.url)
                if not isinstance(client, RedisCluster):
                    # Not a PING, which the ACL user may have no right to.
                    pool = client.connection_pool
                    pool.release(pool.get_connection())
            except CONNECT_ERRORS as error:
                raise ServerConnectionError(self.server, error) from error
            self._client = client
        return self._client

    async def get_async_conn(self) -> AsyncClient:
        """A new asyncio client that the caller closes; asks for the connection without blocking the loop."""
        server = await self.aserver()
        server.check_files()
        return open_async_client(server.url)

    async def aserver(self) -> Server:
        """As `server`, without blocking the event loop."""
        return await self._connection.aserver()

    def queue(self, stream: str, group: str, consumer: str, **config: int) -> RedisStreamsQueue:
        """The queue of one stream and group; `config` as in `QueueConfig`."""
        settings: dict[str, Any] = dict(config)
        return RedisStreamsQueue(self.get_conn(), QueueConfig(stream, group, consumer, **settings))

    def topic(self, name: str) -> Topic:
        """The topic as it is now; a plain stream is a topic of one partition."""
        return Topics(self.get_conn()).open(name)

    def partitions(self, topic: Topic | str) -> list[int]:
        """The numbers of a topic's partitions: what `DrainOperator.partial(...).expand` maps over."""
        return list(self.topic(name_of(topic)).partitions)

    def engine(self, *, connections: int = 1) -> AbstractContextManager[Engine]:
        """The application's database for the length of the block: opened here, disposed at its end.

        Args:
            connections: how many are kept: as many as handlers run at once.

        Raises:
            ValueError: the connection names no database, or Airflow's own.
            DbError: the database does not answer.
        """
        return self._connection.engine(connections=connections)

    @property
    def database_url(self) -> str | None:
        """The SQLAlchemy URL of the application's database, with its password; `None` if there is none."""
        return self._connection.database_url

    def enqueue(
        self,
        stream: str,
        payloads: Iterable[Sendable],
        *,
        dedupe_id: str | None = None,
        window_ms: int = ONE_DAY_MS,
    ) -> list[str]:
        """Add messages to a stream and return their ids; with `dedupe_id`, each index of the list once."""
        writer = StreamWriter(self.get_conn(), stream)
        if dedupe_id is None:
            ids = writer.enqueue_many(payloads)
        else:
            ids = writer.enqueue_once(payloads, dedupe_id=dedupe_id, window_ms=window_ms)
        self.record_output(stream)
        return ids

    def enqueue_named(
        self,
        stream: str,
        payloads: Sequence[Sendable],
        names: Sequence[str],
        *,
        dedupe_id: str,
        window_ms: int = ONE_DAY_MS,
    ) -> list[Added]:
        """Add messages to a stream, each name once under the `dedupe_id`; says of each whether it is new."""
        writer = StreamWriter(self.get_conn(), stream)
        added = writer.enqueue_named(payloads, names, dedupe_id=dedupe_id, window_ms=window_ms)
        self.record_output(stream)
        return added

    def send(
        self,
        topic: Topic | str,
        messages: Sequence[Message],
        *,
        dedupe_id: str | None = None,
        window_ms: int = ONE_DAY_MS,
    ) -> list[str]:
        """Send messages to the partitions of a topic and return their ids; `dedupe_id` as in `enqueue`.

        With a `dedupe_id` a message needs a key or a partition: it is unique in its partition.
        """
        if dedupe_id is not None:
            messages = [
                replace(message, dedupe_id=f"{dedupe_id}:{index}") for index, message in enumerate(messages)
            ]
        return [added.entry_id for added in self.send_each(topic, messages, window_ms=window_ms)]

    def send_each(
        self, topic: Topic | str, messages: Sequence[Message], *, window_ms: int = ONE_DAY_MS
    ) -> list[Added]:
        """Send messages, each dedupe id once in its partition; returns for each whether it is new."""
        added = Producer(self.get_conn(), dedupe_window_ms=window_ms).send_each(topic, messages)
        self.record_output(name_of(topic))
        return added

    def backlog(self, stream: str, group: str, *, count_limit: int = COUNT_LIMIT) -> BacklogStats:
        """The backlog of a group, as of `peek_backlog`; creates neither stream nor group."""
        return peek_backlog(self.get_conn(), stream=stream, group=group, count_limit=count_limit)

    def claim_stale(
        self, stream: str, group: str, consumer: str, *, min_idle_ms: int, count: int = 10
    ) -> list[QueueMessage]:
        """Claim messages that were idle for a time; they are the caller's to handle and ack."""
        return self.queue(stream, group, consumer).claim_stale(min_idle_ms, count)

    def test_connection(self) -> tuple[bool, str]:
        """Connect to the server, and to the database if there is one, and describe both."""
        return try_connection(self._connection, self.get_conn)

    def asset_uri(self, stream: str) -> str:
        """The asset URI of a stream or topic on this server."""
        return stream_uri(self.server.address, stream)

    def record_input(self, stream: str) -> None:
        """Record in Airflow's lineage that this task reads the stream."""
        get_hook_lineage_collector().add_input_asset(context=self, uri=self.asset_uri(stream))

    def record_output(self, stream: str) -> None:
        """Record in Airflow's lineage that this task writes to the stream."""
        get_hook_lineage_collector().add_output_asset(context=self, uri=self.asset_uri(stream))

    def close(self) -> None:
        """Close the client; the next call opens another one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
