"""RedisStreamsHook: queues, topics and the application's database, from one Airflow connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from airflow.providers.common.compat.sdk import get_hook_lineage_collector
from airflow.sdk import BaseHook
from redis.exceptions import RedisClusterException, RedisError
from sqlalchemy import Engine

from airflow_provider_conquiet.assets.redis_stream import stream_uri
from airflow_provider_conquiet.hooks.database import application_engine, mask_password
from airflow_provider_conquiet.hooks.server import Server
from conquiet import BacklogStats, DbError, QueueConfig, QueueMessage, RedisStreamsQueue, StreamWriter
from conquiet.mq import Message, Producer, Topic, TopicError, Topics
from conquiet.queue import AsyncClient, Client, open_async_client, open_client, peek_backlog
from conquiet.queue.backlog import COUNT_LIMIT

Payload = dict[str, Any]

ONE_DAY_MS = 24 * 3_600_000


class RedisStreamsHook(BaseHook):
    """One connection of type `redis_streams`; its client is opened when first used.

    `close()`, or the end of a `with` block, closes the client, and with it every queue and topic of the hook.
    """

    conn_name_attr = "redis_streams_conn_id"
    default_conn_name = "redis_streams_default"
    conn_type = "redis_streams"
    hook_name = "Redis Streams (conquiet)"

    def __init__(self, redis_streams_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.redis_streams_conn_id = redis_streams_conn_id
        self._client: Client | None = None

    @cached_property
    def server(self) -> Server:
        """The server that the connection names."""
        return Server.of_connection(self._connection, self._extra)

    @property
    def url(self) -> str:
        """The server's URL, with its password."""
        return self.server.url

    def get_conn(self) -> Client:
        """The client of this hook, one for all of its queues."""
        if self._client is None:
            self._client = open_client(self.url)
        return self._client

    async def get_async_conn(self) -> AsyncClient:
        """A new asyncio client that the caller closes; asks for the connection without blocking the loop."""
        return open_async_client((await self.aserver()).url)

    async def aserver(self) -> Server:
        """As `server`, without blocking the event loop."""
        connection = await self.aget_connection(self.redis_streams_conn_id)
        # Airflow 3.3 and later would block the loop for the plain one, to mask secrets.
        asynchronous = getattr(connection, "aextra_dejson", None)
        extra = connection.extra_dejson if asynchronous is None else await asynchronous()
        return Server.of_connection(connection, extra)

    def queue(self, stream: str, group: str, consumer: str, **config: int) -> RedisStreamsQueue:
        """The queue of one stream and group; `config` as in `QueueConfig`."""
        return RedisStreamsQueue(self.get_conn(), QueueConfig(stream, group, consumer, **config))

    def topic(self, name: str) -> Topic:
        """The topic as it is now; a plain stream is a topic of one partition."""
        return Topics(self.get_conn()).open(name)

    def partitions(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions: what `DrainOperator.partial(...).expand` maps over."""
        return list(self.topic(topic).partitions)

    def partition_stream(self, topic: str, partition: int) -> str:
        """The stream of one partition.

        Raises:
            TopicError: the topic does not have it.
        """
        opened = self.topic(topic)
        if partition not in opened.partitions:
            raise TopicError(topic, f"has no partition {partition}, only 0 to {opened.partition_count - 1}")
        return opened.keys.stream(partition)

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """The application's database for the length of the block: opened here, disposed at its end.

        Raises:
            ValueError: the connection names no database, or Airflow's own.
            DbError: the database does not answer.
        """
        with application_engine(self._db_url, conn_id=self.redis_streams_conn_id) as engine:
            yield engine

    def enqueue(
        self,
        stream: str,
        payloads: Iterable[Payload],
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

    def send(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        dedupe_id: str | None = None,
        window_ms: int = ONE_DAY_MS,
    ) -> list[str]:
        """Send messages to the partitions of a topic and return their ids; `dedupe_id` as in `enqueue`.

        With a `dedupe_id` a message needs a key or a partition: it is unique in its partition.
        """
        producer = Producer(self.get_conn(), dedupe_window_ms=window_ms)
        if dedupe_id is not None:
            messages = [
                replace(message, dedupe_id=f"{dedupe_id}:{index}") for index, message in enumerate(messages)
            ]
        ids = producer.send_many(topic, messages)
        self.record_output(topic)
        return ids

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
        try:
            info = self.get_conn().info("server")
            # A cluster client answers for each node, or for one, as its version likes.
            node = info if "redis_version" in info else next(iter(info.values()))
            name = "Valkey" if "valkey_version" in node else "Redis"
            version = node.get("valkey_version") or node["redis_version"]
            found = f"{name} {version} ({self.server.mode}) answers at {self.server.address}"
        except (RedisError, RedisClusterException, OSError, ValueError) as error:
            return False, f"No answer from Redis: {type(error).__name__}: {error}"
        if not self._extra.get("db_url"):
            return True, f"{found}. No application database: tasks that drain need db_url"
        try:
            with self.engine() as engine:
                url = engine.url.render_as_string(hide_password=True)
                return True, f"{found}. The database {url} answers"
        except (DbError, ValueError) as error:
            return False, f"{found}, but {error}"

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

    @cached_property
    def _connection(self) -> Any:
        return self.get_connection(self.redis_streams_conn_id)

    @cached_property
    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = self._connection.extra_dejson
        return extra

    @property
    def _db_url(self) -> str:
        db_url = self._extra.get("db_url")
        if not db_url:
            raise ValueError(
                f"connection {self.redis_streams_conn_id!r} names no database; put the application's "
                "SQLAlchemy URL into its field db_url"
            )
        mask_password(db_url)
        return str(db_url)
