"""One stream, one consumer group: enqueue, read, ack, claim; knows no database."""

from conquiet.queue.async_queue import AsyncQueue
from conquiet.queue.backlog import BacklogStats, ConsumerBacklog, peek_backlog, peek_backlog_async
from conquiet.queue.config import QueueConfig, unique_consumer_name
from conquiet.queue.connection import AsyncClient, Client, open_async_client, open_client
from conquiet.queue.message import QueueMessage, entry_id_order
from conquiet.queue.stream import RedisStreamsQueue
from conquiet.queue.writer import StreamWriter

__all__ = [
    "AsyncClient",
    "AsyncQueue",
    "BacklogStats",
    "Client",
    "ConsumerBacklog",
    "QueueConfig",
    "QueueMessage",
    "RedisStreamsQueue",
    "StreamWriter",
    "entry_id_order",
    "open_async_client",
    "open_client",
    "peek_backlog",
    "peek_backlog_async",
    "unique_consumer_name",
]
