"""Calls for many partitions, of which some servers of a cluster may not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from conquiet.errors import QueueError
from conquiet.mq.topics import Topic
from conquiet.queue.connection import is_unanswered, server_of


def for_each_partition(topic: Topic, partitions: Iterable[int], call: Callable[[int], None]) -> None:
    """Call for each partition, also after a failure; one server that does not answer is waited for once.

    Raises:
        QueueError: the first failure, after all other calls were made.
    """
    failure: QueueError | None = None
    unavailable: set[str] = set()
    for partition in partitions:
        with topic.visible("find the server"):
            server = server_of(topic.client, topic.keys.stream(partition))
        try:
            if server not in unavailable:
                call(partition)
        except QueueError as error:
            failure = failure or error
            if is_unanswered(error):
                unavailable.add(server)
    if failure is not None:
        raise failure
