"""What a queue needs to know: one stream, one consumer group, one consumer."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

from conquiet.arguments import check_name, check_positive_int
from conquiet.masking import shown
from conquiet.queue.replicas import ReplicaWait

#: How long a message is idle before it counts as stale, unless a config says otherwise.
CLAIM_IDLE_MS = 60_000


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Names and limits of one queue, checked once when it is made.

    Examples:
        >>> config = QueueConfig("orders", "billing", unique_consumer_name(), claim_idle_ms=120_000)
    """

    #: The key of the Redis stream.
    stream_key: str
    #: The consumer group; created at the start of the stream if it does not exist.
    consumer_group: str
    #: Unique among the processes that are alive; `unique_consumer_name()` makes one.
    consumer_name: str
    #: How long a read waits for a message.
    block_ms: int = 5_000
    #: `QueueConsumer` reads one message at a time and refuses any other number; `drain` has its `batch_size`.
    max_read_count: int = 1
    #: How long a message must have been idle before it counts as stale.
    claim_idle_ms: int = CLAIM_IDLE_MS
    #: `enqueue`, `enqueue_many` and `enqueue_once` wait until so many replicas have the messages, and raise a
    #: `NotReplicatedError` otherwise; 0 for no wait.
    min_replicas: int = 0
    #: How long they wait for that.
    replica_timeout_ms: int = 1_000
    #: What was enqueued is on disk, too, at the primary and these replicas; refused before Redis 7.2, and
    #: with `appendonly no`.
    fsync: bool = False

    def __post_init__(self) -> None:
        for name in ("stream_key", "consumer_group", "consumer_name"):
            check_name(name, getattr(self, name))
        for name in ("block_ms", "max_read_count", "claim_idle_ms"):
            check_positive_int(name, getattr(self, name))
        ReplicaWait(self.min_replicas, self.replica_timeout_ms, self.fsync)


def check_config(config: object) -> None:
    """Refuse what is no config, as arguments in the wrong order."""
    if not isinstance(config, QueueConfig):
        is_url = isinstance(config, str) and "://" in config
        remedy = "from_url(url, config)" if is_url else "QueueConfig(stream, group, consumer)"
        raise TypeError(f"config must be a QueueConfig, got {shown(config)}; write {remedy}")


def unique_consumer_name(prefix: str = "") -> str:
    """A short name that no other live process has: host, pid and six random hex digits.

    Examples:
        >>> unique_consumer_name("billing")
        'billing-...'
    """
    host = socket.gethostname().split(".")[0][:20] or "host"
    name = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
    return f"{prefix}-{name}" if prefix else name
