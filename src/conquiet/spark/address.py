"""Where entries are: a server, and a stream or the streams of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from conquiet.arguments import check_name
from conquiet.errors import TopicError
from conquiet.queue import Client, open_client
from conquiet.queue.connection import visible_errors

if TYPE_CHECKING:
    from conquiet.mq import Topic

#: Longer than any command of ours takes: one that adds or walks some thousand entries.
_PATIENCE_MS = 25_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAddress:
    """A server, and a stream or a topic."""

    url: str
    stream: str | None = None
    topic: str | None = None

    def __post_init__(self) -> None:
        check_name("url", self.url)
        if (self.stream is None) == (self.topic is None):
            raise ValueError(
                f"either stream or topic must be given, got stream={self.stream!r} and topic={self.topic!r}"
            )
        check_name("stream" if self.stream is not None else "topic", self.stream or self.topic)

    def connect(self) -> Client:
        """A client for the server; RESP2, since replies are read as the bytes they come in."""
        with visible_errors("connect", stream=self.stream or self.topic or "", group=None):
            return open_client(self.url, block_ms=_PATIENCE_MS, protocol=2)

    def streams(self, client: Client) -> list[str]:
        """The stream of each partition, in order."""
        if self.topic is None:
            return [self.stream or ""]
        topic = open_topic(client, self.topic)
        return [topic.keys.stream(partition) for partition in topic.partitions]


def open_topic(client: Client, name: str) -> Topic:
    """The topic.

    Raises:
        TopicError: it was never created; a plain stream is read and written with `stream`.
    """
    from conquiet.mq import Topics

    topic = Topics(client).open(name)
    if topic.layout == "bare_stream":
        raise TopicError(
            name, "is not there; `Topics.create` makes it, and the option `stream` is for plain streams"
        )
    return topic
