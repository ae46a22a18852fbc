"""What failovers have lost of a topic, by the marks of its streams."""

from __future__ import annotations

from conquiet.mq.topics import Topic
from conquiet.queue.losses import Loss, losses_of


def topic_losses(topic: Topic) -> list[Loss]:
    """The losses of every partition, as far as any process that survived knows them."""
    losses: list[Loss] = []
    for partition in topic.partitions:
        mark = topic.keys.end(partition)
        losses += losses_of(topic.keys.stream(partition), mark, topic.call("HGETALL", mark))
    return losses
