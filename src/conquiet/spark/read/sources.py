"""Which streams a query reads: those of its options, looked up anew for each micro-batch."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from conquiet.errors import QueueError
from conquiet.queue.connection import Client, as_text, visible_errors
from conquiet.spark.address import StreamAddress, open_topic


@dataclass(frozen=True, slots=True)
class Source:
    """One stream, as offsets and options name it."""

    #: In offsets: the partition of a single topic, else the key of the stream.
    name: str
    stream: str
    #: The topic, or the stream itself.
    place: str
    partition: int


class Sources:
    """Finds the streams of an address; lives as long as its reader."""

    def __init__(self, address: StreamAddress, interval_ms: int) -> None:
        self._address = address
        self._interval_s = interval_ms / 1_000
        #: Of a pattern: the streams, and when the server's keys were searched for them.
        self._matching: list[str] = []
        self._searched_at = float("-inf")

    def find(self, client: Client) -> list[Source]:
        """All streams that there are now.

        Raises:
            TopicError: a topic that is named is not there.
        """
        address = self._address
        if address.topic is not None:
            return self._of_topic(client, address.topic, is_only=True)
        if address.stream is not None:
            return [Source("0", address.stream, address.stream, 0)]
        topics = list(address.topics)
        if address.topic_pattern is not None:
            from conquiet.mq import Topics

            topics = [name for name in Topics(client).names() if fnmatchcase(name, address.topic_pattern)]
        if address.stream_pattern is not None:
            self._search(client, address.stream_pattern)
        streams = [Source(stream, stream, stream, 0) for stream in (*address.streams, *self._matching)]
        return [one for topic in topics for one in self._of_topic(client, topic, is_only=False)] + streams

    def _of_topic(self, client: Client, name: str, *, is_only: bool) -> list[Source]:
        keys, partitions = (topic := open_topic(client, name)).keys, topic.partitions
        streams = [(partition, keys.stream(partition)) for partition in partitions]
        return [Source(str(number) if is_only else key, key, name, number) for number, key in streams]

    def _search(self, client: Client, pattern: str) -> None:
        if time.monotonic() - self._searched_at < self._interval_s:
            return
        with visible_errors("SCAN", stream=pattern, group=None):
            # Once found a stream stays: that it is gone must be noticed.
            found = {as_text(key) for key in client.scan_iter(match=pattern, count=1_000, _type="stream")}
        self._matching = sorted(found.union(self._matching))
        self._searched_at = time.monotonic()


def check_none_missing(sources: Collection[Source], names: Collection[str], *, fails_on_loss: bool) -> None:
    """Refuse offsets of streams that are no longer read.

    Raises:
        QueueError: some are missing, and `fails_on_loss`; or all of them.
    """
    missing = sorted(set(names) - {source.name for source in sources})
    if missing and (fails_on_loss or len(missing) == len(names)):
        raise QueueError(
            "read",
            stream=missing[0],
            group=None,
            reason=(
                f"the checkpoint has offsets of {', '.join(missing):.300}, which the options do not name, or "
                "which was deleted; set failOnDataLoss to false to go on without it"
            ),
        )
