"""Celery on its Redis broker; `PEERS_LATE=1` acks after the task, as its documentation advises for safety."""

from __future__ import annotations

import os
import sys

from celery import Celery

from benchmarks.peers.systems import effects

app = Celery("peers", broker=effects.REDIS_URL, backend=effects.REDIS_URL if effects.HAS_RESULTS else None)
is_late = os.environ.get("PEERS_LATE") == "1"
app.conf.update(
    task_acks_late=is_late,
    task_reject_on_worker_lost=is_late,
    task_ignore_result=not effects.HAS_RESULTS,
)


@app.task(name="book")
def book(number: int) -> None:
    """One task."""
    effects.do(number)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        book.delay(number)
