"""Dramatiq on its Redis broker."""

from __future__ import annotations

import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.systems import effects

broker = RedisBroker(url=effects.REDIS_URL)
if effects.HAS_RESULTS:
    broker.add_middleware(Results(backend=RedisBackend(url=effects.REDIS_URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(**({"store_results": True} if effects.HAS_RESULTS else {}))
def book(number: int) -> None:
    """One task."""
    effects.do(number)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        book.send(number)
