"""SampleRing: figures of topics over time, kept in Redis for a few hours; needs no Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from redis.exceptions import ResponseError

from conquiet.operations.rates import Sample
from conquiet.queue import Client
from conquiet.queue.connection import AS_BYTES, queue_error, run_command, visible_errors
from conquiet.queue.message import data_of

#: Of one topic, the oldest are dropped; at one in 15 s they reach back 3 hours.
KEPT = 720
#: At most one sample of a topic is kept for each of these spans, however many processes write.
EVERY_MS = 15_000
#: The samples of a topic that is not sampled any more expire.
_EXPIRE_MS = 86_400_000


def samples_key(topic: str) -> str:
    """A stream: the samples of one topic, plain stream or queue of tasks."""
    return f"conquiet:samples:{topic}"


class SampleRing:
    """Samples of topics, written by each process that looks at them; at most `KEPT` of each topic."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, samples: Iterable[Sample]) -> int:
        """Keep one sample of each topic, unless another process has for this span of time; returns how many.

        Raises:
            QueueError: Redis failed, or its ACL forbids to write them.
        """
        by_topic: dict[str, list[Sample]] = {}
        for sample in samples:
            by_topic.setdefault(sample.topic, []).append(sample)
        if not by_topic:
            return 0
        pipeline = self._client.pipeline(transaction=False)
        for topic, groups in by_topic.items():
            # The span is the entry's id: the server refuses a second one.
            entry_id = f"{max(1, groups[0].at_ms // EVERY_MS)}-1"
            add = ("XADD", samples_key(topic), "MAXLEN", "~", KEPT, entry_id, "data", _encode(groups))
            pipeline.execute_command(*add)
            pipeline.execute_command("PEXPIRE", samples_key(topic), _EXPIRE_MS)
        with visible_errors("XADD", stream="conquiet:samples", group=None):
            replies = pipeline.execute(raise_on_error=False)
        refused = [reply for reply in replies if isinstance(reply, Exception)]
        for error in refused:
            if not (isinstance(error, ResponseError) and "equal or smaller" in str(error)):
                raise queue_error("XADD", error, stream="conquiet:samples", group=None) from error
        return len(by_topic) - len(refused)

    def read(self, topic: str, *, most: int = KEPT) -> list[Sample]:
        """The samples of a topic, the oldest first; one of each group for each moment."""
        command = ("XREVRANGE", samples_key(topic), "+", "-", "COUNT", most)
        entries = run_command(self._client, *command, stream=samples_key(topic), group=None)
        return [sample for _, fields in reversed(entries) for sample in _decode(topic, fields)]

    def last(self, topics: Sequence[str], *, count: int = 2) -> dict[str, list[Sample]]:
        """The last samples of many topics in one round trip, the oldest first."""
        pipeline = self._client.pipeline(transaction=False)
        for topic in topics:
            pipeline.execute_command("XREVRANGE", samples_key(topic), "+", "-", "COUNT", count, **AS_BYTES)
        with visible_errors("XREVRANGE", stream="conquiet:samples", group=None):
            replies = pipeline.execute() if topics else []
        return {
            topic: [sample for _, fields in reversed(entries) for sample in _decode(topic, fields)]
            for topic, entries in zip(topics, replies, strict=True)
        }


def _encode(groups: Sequence[Sample]) -> str:
    rows = []
    for sample in groups:
        row = asdict(sample)
        del row["topic"]
        rows.append({name: value for name, value in row.items() if value is not None})
    return json.dumps({"groups": rows})


def _decode(topic: str, fields: Any) -> list[Sample]:
    """Those that this version can read."""
    try:
        rows = json.loads(data_of(fields))["groups"]
        return [
            Sample(
                topic=topic,
                group=row.get("group"),
                at_ms=int(row["at_ms"]),
                length=int(row["length"]),
                added=row.get("added"),
                lag=row.get("lag"),
                pending=int(row.get("pending", 0)),
                oldest_undelivered_age_ms=row.get("oldest_undelivered_age_ms"),
                oldest_pending_age_ms=row.get("oldest_pending_age_ms"),
                dead_letters=int(row.get("dead_letters", 0)),
            )
            for row in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
