"""Takes samples of topics and groups for a live view; read-only and without SCAN."""

from __future__ import annotations

from collections.abc import Sequence

from conquiet.errors import QueueError, TopicError
from conquiet.mq.clock import server_ms
from conquiet.mq.dead_letters.letters import DeadLetters
from conquiet.mq.look.admin import MqAdmin
from conquiet.mq.topics import Topic, Topics
from conquiet.operations.rates import Sample
from conquiet.queue import Client
from conquiet.queue.backlog import as_mapping


def take_samples(client: Client, names: Sequence[str] | None = None) -> list[Sample]:
    """One sample of every group of these topics and streams, or of every topic of the registry.

    A topic without groups has one sample without a group; one that is not there has none.
    """
    topics = Topics(client)
    found: list[Sample] = []
    for name in topics.names() if names is None else names:
        try:
            found += _samples_of(client, topics.open(name))
        except TopicError:
            continue
    return found


def _samples_of(client: Client, topic: Topic) -> list[Sample]:
    admin = MqAdmin(client)
    stats, groups = admin.topic(topic.name), admin.groups(topic.name)
    letters = DeadLetters(topic).count()
    at_ms, added = server_ms(topic), _added(topic)
    if not groups:
        alone = Sample(
            topic=topic.name, group=None, at_ms=at_ms, length=stats.length, added=added, dead_letters=letters
        )
        return [alone]
    return [
        Sample(
            topic=topic.name,
            group=group.group,
            at_ms=at_ms,
            length=stats.length,
            added=added,
            lag=group.lag,
            pending=group.pending,
            oldest_undelivered_age_ms=group.oldest_undelivered_age_ms,
            oldest_pending_age_ms=group.oldest_pending_age_ms,
            dead_letters=letters,
        )
        for group in groups
    ]


def _added(topic: Topic) -> int | None:
    """Entries ever added to all partitions; `None` if the server does not count them."""
    total = 0
    for partition in topic.partitions:
        stream = topic.keys.stream(partition)
        if not topic.call("EXISTS", stream):
            continue
        try:
            added = as_mapping(topic.call("XINFO STREAM", stream)).get("entries-added")
        except QueueError as error:
            if "no such key" not in str(error.__cause__):
                raise
            # Deleted since it was looked for: no count is better than a wrong one.
            return None
        if added is None:
            return None
        total += int(added)
    return total
