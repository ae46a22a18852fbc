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
    """A server, and a stream or a topic, several of them, or all whose names match a pattern."""

    url: str
    stream: str | None = None
    topic: str | None = None
    streams: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    stream_pattern: str | None = None
    topic_pattern: str | None = None

    def __post_init__(self) -> None:
        check_name("url", self.url)
        for option, names in self.given.items():
            for name in names:
                check_name(option, name)
        if len(self.given) > 1:
            raise self.must_be_given()

    @property
    def given(self) -> dict[str, tuple[str, ...]]:
        """Each option of a place that is set, with its names."""
        options = {
            "stream": () if self.stream is None else (self.stream,),
            "topic": () if self.topic is None else (self.topic,),
            "streams": self.streams,
            "topics": self.topics,
            "streamPattern": () if self.stream_pattern is None else (self.stream_pattern,),
            "topicPattern": () if self.topic_pattern is None else (self.topic_pattern,),
        }
        return {option: names for option, names in options.items() if names}

    @property
    def is_of_topics(self) -> bool:
        """Whether entries have envelopes."""
        return bool({"topic", "topics", "topicPattern"} & self.given.keys())

    @property
    def is_of_several(self) -> bool:
        """Whether there may be more than one stream or topic."""
        return not {"stream", "topic"} & self.given.keys()

    @property
    def place(self) -> str:
        """The names, for people."""
        return ",".join(name for names in self.given.values() for name in names)

    def must_be_given(self) -> ValueError:
        """The error of options that name no place, or several."""
        given = ", ".join(f"{option}={','.join(names)!r}" for option, names in self.given.items())
        return ValueError(
            "either stream or topic must be given, or when reading one of streams, topics, streamPattern and "
            f"topicPattern; got {given or 'none'}"
        )

    def connect(self) -> Client:
        """A client for the server; RESP2, since replies are read as the bytes they come in."""
        with visible_errors("connect", stream=self.place, group=None):
            return open_client(self.url, block_ms=_PATIENCE_MS, protocol=2)


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
