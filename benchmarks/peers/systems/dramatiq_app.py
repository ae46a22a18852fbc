"""Dramatiq on its Redis broker."""

from __future__ import annotations

import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.systems import effects

dramatiq.set_broker(RedisBroker(url=effects.REDIS_URL))


@dramatiq.actor
def book(number: int) -> None:
    """One task."""
    effects.do(number)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        book.send(number)
