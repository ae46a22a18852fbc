"""RQ."""

from __future__ import annotations

import sys

import redis
from rq import Queue

from benchmarks.peers.systems import effects

if __name__ == "__main__":
    queue = Queue(connection=redis.Redis.from_url(effects.REDIS_URL))
    for number in range(int(sys.argv[1])):
        queue.enqueue(effects.do, number)
