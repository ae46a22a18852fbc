"""How fast backlogs move: samples of topics and groups, and the rates between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from conquiet.errors import QueueError, TopicError
from conquiet.mq import DeadLetters, MqAdmin, Topic, Topics
from conquiet.mq.clock import server_ms
from conquiet.queue import Client
from conquiet.queue.backlog import as_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One group of one topic or stream at one moment; without a group, the topic alone."""

    topic: str
    group: str | None
    #: By the server's clock.
    at_ms: int
    length: int
    #: Entries ever added, where the server counts them (Redis 7 and later).
    added: int | None
    lag: int | None = None
    pending: int = 0
    oldest_undelivered_age_ms: int | None = None
    oldest_pending_age_ms: int | None = None
    dead_letters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Messages per second between two samples; `None` is what they do not show."""

    enqueued_per_s: float | None = None
    #: Delivered and settled.
    handled_per_s: float | None = None
    #: Until the backlog is empty at this rate; `None` also if it does not shrink.
    seconds_to_drain: float | None = None


def rates_between(earlier: Sample | None, later: Sample) -> Rates:
    """What happened from one sample to the next; no Redis, no clock."""
    if earlier is None or later.at_ms <= earlier.at_ms:
        return Rates()
    seconds = (later.at_ms - earlier.at_ms) / 1000
    is_counted = earlier.added is not None and later.added is not None
    enqueued = (later.added or 0) - (earlier.added or 0) if is_counted else later.length - earlier.length
    if enqueued < 0:
        # The stream was trimmed, or deleted and created again: the difference means nothing.
        return Rates()
    if later.group is None or earlier.lag is None or later.lag is None:
        return Rates(enqueued_per_s=enqueued / seconds)
    left_then, left_now = earlier.lag + earlier.pending, later.lag + later.pending
    shrinking = (left_then - left_now) / seconds
    return Rates(
        enqueued_per_s=enqueued / seconds,
        # What was there and what came, less what is left: it does not matter which consumer handled it.
        handled_per_s=max(0, left_then + enqueued - left_now) / seconds,
        seconds_to_drain=left_now / shrinking if shrinking > 0 else None,
    )


def take_samples(client: Client, names: Sequence[str] | None = None) -> list[Sample]:
    """One sample of every group of these topics and streams, or of every topic of the registry.

    A topic without groups has one sample without a group; one that is not there has none.
    """
    topics, admin = Topics(client), MqAdmin(client)
    samples: list[Sample] = []
    for name in topics.names() if names is None else names:
        with suppress(TopicError):
            topic = topics.open(name)
            length, groups = admin.topic(topic).length, admin.groups(topic)
            letters = DeadLetters(topic).count()
            at_ms, added = server_ms(topic), _entries_added(topic)
            alone = Sample(
                topic=name, group=None, at_ms=at_ms, length=length, added=added, dead_letters=letters
            )
            samples += [
                replace(
                    alone,
                    group=group.group,
                    lag=group.lag,
                    pending=group.pending,
                    oldest_undelivered_age_ms=group.oldest_undelivered_age_ms,
                    oldest_pending_age_ms=group.oldest_pending_age_ms,
                )
                for group in groups
            ] or [alone]
    return samples


def _entries_added(topic: Topic) -> int | None:
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
            # Deleted since EXISTS: no count is better than a wrong one.
            return None
        if added is None:
            return None
        total += int(added)
    return total
