"""Which streams a stream or a topic is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conquiet.errors import TopicError
from conquiet.queue import Client, open_client
from conquiet.queue.connection import visible_errors
from conquiet.spark.options import Place

if TYPE_CHECKING:
    from conquiet.mq import Topic

#: Longer than any command of ours takes: one that adds or walks some thousand entries.
_PATIENCE_MS = 25_000


def open_place(place: Place) -> Client:
    """A client for the place's server; RESP2, since replies are read as the bytes they come in."""
    with visible_errors("connect", stream=place.stream or place.topic or "", group=None):
        return open_client(place.url, block_ms=_PATIENCE_MS, protocol=2)


def open_topic(client: Client, name: str) -> Topic:
    """The topic.

    Raises:
        TopicError: nobody has created it; a plain stream is read and written with `stream`.
    """
    from conquiet.mq import Topics

    topic = Topics(client).open(name)
    if topic.layout == "legacy":
        raise TopicError(
            name, "is not there; `Topics.create` makes it, and the option `stream` is for plain streams"
        )
    return topic


def streams_of(client: Client, place: Place) -> list[str]:
    """The stream of each partition, in order."""
    if place.topic is None:
        return [place.stream or ""]
    topic = open_topic(client, place.topic)
    return [topic.keys.stream(partition) for partition in topic.partitions]
