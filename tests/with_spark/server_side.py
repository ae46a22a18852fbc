"""What the tests put into streams and find there, with redis-py alone."""

from __future__ import annotations

import json
from typing import Any

import redis

from conquiet.mq import Topic


def add_orders(client: redis.Redis, stream: str, numbers: range, **more: object) -> list[str]:
    """One entry for each number; returns the ids."""
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        pipeline.execute_command("XADD", stream, "*", "data", json.dumps({"number": number, **more}))
    return [entry_id.decode() for entry_id in pipeline.execute()]


def numbers_in(client: redis.Redis, *streams: str) -> list[int]:
    """The numbers in all streams, in order."""
    found = []
    for stream in streams:
        for _, fields in client.xrange(stream):
            document = json.loads(fields[b"data"])
            found.append(document.get("payload", document)["number"])
    return sorted(found)


def streams_of(topic: Topic) -> list[str]:
    """The streams of a topic."""
    return [topic.keys.stream(partition) for partition in topic.partitions]


def envelopes_in(client: redis.Redis, topic: Topic) -> list[dict[str, Any]]:
    """Every envelope of a topic."""
    return [
        json.loads(fields[b"data"]) for stream in streams_of(topic) for _, fields in client.xrange(stream)
    ]
