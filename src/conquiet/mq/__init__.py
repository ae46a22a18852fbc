"""Topics of partitions on Redis Streams: leases, retry, dead letters; everything above the core is opt-in."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conquiet.errors import LeaseLostError, PartitionBusyError, TopicError
from conquiet.mq.admin import MqAdmin
from conquiet.mq.collector import MqCollector
from conquiet.mq.consumer_config import ConsumerConfig
from conquiet.mq.dead_letter_record import DeadLetterRecord
from conquiet.mq.dead_letters import DeadLetterPage, DeadLetters, ReplayReport
from conquiet.mq.envelope import Envelope, MqMessage
from conquiet.mq.outcomes import Ack, DeadLetter, Retry
from conquiet.mq.partitioners import (
    ConsistentHashPartitioner,
    HashPartitioner,
    Partitioner,
    RoundRobinPartitioner,
)
from conquiet.mq.producer import Message, Producer
from conquiet.mq.retry import RetryPolicy
from conquiet.mq.topics import Topic, TopicPolicies, Topics, is_any_due_async, topic_streams_async
from conquiet.mq.worker_config import WorkerConfig

if TYPE_CHECKING:
    from conquiet.mq.consumer import PartitionConsumer
    from conquiet.mq.drain import PartitionDrainReport, drain_partition

# Loaded on first use: who sends, looks or operates pays for no SQLAlchemy.
_HOME_OF = {
    "PartitionConsumer": "conquiet.mq.consumer",
    "PartitionDrainReport": "conquiet.mq.drain",
    "drain_partition": "conquiet.mq.drain",
}

__all__ = [
    "Ack",
    "ConsistentHashPartitioner",
    "ConsumerConfig",
    "DeadLetter",
    "DeadLetterPage",
    "DeadLetterRecord",
    "DeadLetters",
    "Envelope",
    "HashPartitioner",
    "LeaseLostError",
    "Message",
    "MqAdmin",
    "MqCollector",
    "MqMessage",
    "PartitionBusyError",
    "PartitionConsumer",
    "PartitionDrainReport",
    "Partitioner",
    "Producer",
    "ReplayReport",
    "Retry",
    "RetryPolicy",
    "RoundRobinPartitioner",
    "Topic",
    "TopicError",
    "TopicPolicies",
    "Topics",
    "WorkerConfig",
    "drain_partition",
    "is_any_due_async",
    "topic_streams_async",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
