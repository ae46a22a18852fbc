"""What the tests put into streams and find there, with redis-py alone."""

from __future__ import annotations

import json
from typing import Any

from conquiet.mq import Topic
from tests.services import Client


def add_orders(client: Client, stream: str, numbers: range, **more: object) -> list[str]:
    """One entry for each number; returns the ids."""
    return _add(client, stream, [("*", {"number": number, **more}) for number in numbers])


def add_orders_evenly(client: Client, stream: str, count: int) -> list[str]:
    """As many entries, ten in each millisecond, whatever the machine does meanwhile."""
    ids = (f"{1_700_000_000_000 + number // 10}-{number % 10}" for number in range(count))
    return _add(client, stream, [(entry_id, {"number": number}) for number, entry_id in enumerate(ids)])


def _add(client: Client, stream: str, entries: list[tuple[str, dict[str, object]]]) -> list[str]:
    pipeline = client.pipeline(transaction=False)
    for entry_id, payload in entries:
        pipeline.execute_command("XADD", stream, entry_id, "data", json.dumps(payload))
    return [added.decode() for added in pipeline.execute()]


def numbers_in(client: Client, *streams: str) -> list[int]:
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


def envelopes_in(client: Client, topic: Topic) -> list[dict[str, Any]]:
    """Every envelope of a topic."""
    return [
        json.loads(fields[b"data"]) for stream in streams_of(topic) for _, fields in client.xrange(stream)
    ]
