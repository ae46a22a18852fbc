"""One stream, one consumer group: enqueue, read, ack, claim; knows no database."""

from conquiet.queue.backlog import BacklogStats, ConsumerBacklog
from conquiet.queue.config import QueueConfig, unique_consumer_name
from conquiet.queue.connection import open_client
from conquiet.queue.message import QueueMessage
from conquiet.queue.stream import RedisStreamsQueue

__all__ = [
    "BacklogStats",
    "ConsumerBacklog",
    "QueueConfig",
    "QueueMessage",
    "RedisStreamsQueue",
    "open_client",
    "unique_consumer_name",
]
