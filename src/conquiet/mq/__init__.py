"""Topics of partitions on Redis Streams: leases, retry, dead letters; everything above the core is opt-in."""

from conquiet.errors import LeaseLostError, TopicError
from conquiet.mq.admin import MqAdmin
from conquiet.mq.collector import MqCollector
from conquiet.mq.consumer import PartitionConsumer
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
from conquiet.mq.topics import Topic, TopicPolicies, Topics
from conquiet.mq.worker import WorkerConfig

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
    "PartitionConsumer",
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
]
