"""The server's clock: the one that stamps entries and ends leases."""

from __future__ import annotations

from conquiet.mq.topics import Topic


def server_ms(topic: Topic) -> int:
    """Now, ms since the epoch; on a cluster by one of its nodes."""
    seconds, microseconds = topic.call("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000
