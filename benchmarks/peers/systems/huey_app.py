"""huey."""

from __future__ import annotations

import sys

from huey import RedisHuey

from benchmarks.peers.systems import effects

huey = RedisHuey("peers", url=effects.REDIS_URL, results=effects.HAS_RESULTS, store_none=effects.HAS_RESULTS)


@huey.task()
def book(number: int) -> None:
    """One task."""
    effects.do(number)


if __name__ == "__main__":
    # By the name that the consumer imports it by.
    from benchmarks.peers.systems import huey_app

    for number in range(int(sys.argv[1])):
        huey_app.book(number)
