"""Topics of partitions on Redis Streams: leases, retry, dead letters; everything above the core is opt-in."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conquiet.errors import LeaseLostError, PartitionBusyError, TopicError
from conquiet.mq.async_reads import is_any_due_async, topic_streams_async
from conquiet.mq.dead_letters.letters import DeadLetterPage, DeadLetters
from conquiet.mq.dead_letters.record import DeadLetterRecord
from conquiet.mq.dead_letters.replay import ReplayReport
from conquiet.mq.envelope import Envelope, MqMessage
from conquiet.mq.look.admin import MqAdmin
from conquiet.mq.look.collector import MqCollector
from conquiet.mq.look.delayed import DelayedMessage
from conquiet.mq.look.messages import GroupPlace, MessageBrowser, MessagePage, MessageQuery, StoredMessage
from conquiet.mq.look.stats import total_backlog
from conquiet.mq.own.retry_policy import RetryPolicy
from conquiet.mq.policies import DeadLetterPolicy, TopicPolicies
from conquiet.mq.send.async_producer import AsyncProducer
from conquiet.mq.send.message import Message
from conquiet.mq.send.partitioners import (
    ConsistentHashPartitioner,
    HashPartitioner,
    Partitioner,
    RoundRobinPartitioner,
)
from conquiet.mq.send.producer import Producer
from conquiet.mq.topics import Topic, Topics

if TYPE_CHECKING:
    from conquiet.consume.outcome import Ack, DeadLetter, Retry
    from conquiet.mq.own.consumer import PartitionConsumer
    from conquiet.mq.own.consumer_config import ConsumerConfig
    from conquiet.mq.own.drain import drain_partition
    from conquiet.mq.own.drain_topic import drain_topic

# Loaded on first use: a process that only sends or inspects pays for no SQLAlchemy.
_HOME_OF = {
    "Ack": "conquiet.consume.outcome",
    "ConsumerConfig": "conquiet.mq.own.consumer_config",
    "DeadLetter": "conquiet.consume.outcome",
    "PartitionConsumer": "conquiet.mq.own.consumer",
    "Retry": "conquiet.consume.outcome",
    "drain_partition": "conquiet.mq.own.drain",
    "drain_topic": "conquiet.mq.own.drain_topic",
}

__all__ = [
    "Ack",
    "AsyncProducer",
    "ConsistentHashPartitioner",
    "ConsumerConfig",
    "DeadLetter",
    "DeadLetterPage",
    "DeadLetterPolicy",
    "DeadLetterRecord",
    "DeadLetters",
    "DelayedMessage",
    "Envelope",
    "GroupPlace",
    "HashPartitioner",
    "LeaseLostError",
    "Message",
    "MessageBrowser",
    "MessagePage",
    "MessageQuery",
    "MqAdmin",
    "MqCollector",
    "MqMessage",
    "PartitionBusyError",
    "PartitionConsumer",
    "Partitioner",
    "Producer",
    "ReplayReport",
    "Retry",
    "RetryPolicy",
    "RoundRobinPartitioner",
    "StoredMessage",
    "Topic",
    "TopicError",
    "TopicPolicies",
    "Topics",
    "drain_partition",
    "drain_topic",
    "is_any_due_async",
    "topic_streams_async",
    "total_backlog",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
