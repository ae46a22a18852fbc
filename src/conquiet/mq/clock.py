"""The clocks of leases: the server's, by which they end, and our own, by which we stop in time."""

from __future__ import annotations

import time

from conquiet.mq.topics import Topic

#: It goes on while the machine sleeps, as the server's does; the monotonic clock of Linux stands still.
_SLEEPLESS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Seconds, by which `lease_valid_until` is measured."""
    return time.clock_gettime(_SLEEPLESS)


def server_ms(topic: Topic) -> int:
    """Now, ms since the epoch; on a cluster by one of its nodes."""
    seconds, microseconds = topic.call("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000
