"""KnownTopics: topics that a producer has looked up lately."""

from __future__ import annotations

import time

from conquiet.errors import TopicError
from conquiet.mq.topics import Topic, Topics
from conquiet.queue.connection import Client

#: How long a topic is not looked up again: meanwhile two producers may place one key differently.
_KNOWN_FOR_S = 1.0


class KnownTopics:
    """Looks up each topic once a second at most."""

    def __init__(self, client: Client, *, create_streams: bool) -> None:
        self._topics = Topics(client)
        self._create_streams = create_streams
        #: Topics, and the monotonic time until which they are not looked up again.
        self._known: dict[str, tuple[Topic, float]] = {}

    def open(self, name: str) -> Topic:
        """The topic or plain stream of this name.

        Raises:
            TopicError: there is none.
        """
        now = time.monotonic()
        known = self._known.get(name)
        if known is not None and now < known[1]:
            return known[0]
        topic = self._topics.open(name) if self._create_streams else self._topics.open_existing(name)
        # A plain stream is always looked up: the topic that is created under its name has other readers.
        if topic.layout != "bare_stream":
            self._known[name] = topic, now + _KNOWN_FOR_S
        return topic

    def restore(self, topic: Topic, added: int = 0, of: int = 1) -> Topic:
        """Create the streams that a topic lacks.

        Raises:
            TopicError: it was deleted since it was looked up.
        """
        self._known.pop(topic.name, None)
        try:
            return self._topics.restore(topic)
        except TopicError as error:
            raise deleted(topic.name, added, of) from error

    def forget(self) -> None:
        """Look up every topic again."""
        self._known.clear()


def deleted(name: str, added: int, of: int) -> TopicError:
    """The error of a send to a topic that was deleted meanwhile."""
    return TopicError(name, f"was deleted: {added} of {of} messages were added to it before")
