"""One worker process of the short demo: drains, or claims what a dead worker left; its report is a file."""

from __future__ import annotations

import sys
from pathlib import Path

from conquiet.consume import DrainLimits, drain, drain_stale
from conquiet.db import Inbox
from examples.demo.orders import book, open_database, open_queue

_LIMITS = DrainLimits(max_messages=None, idle_ms=300)


def work(task: str, url: str, database: str, consumer: str, report: Path) -> None:
    """Run one worker to its end, or until it is killed."""
    engine = open_database(database)
    with open_queue(url, consumer) as queue:
        if task == "claim":
            done = drain_stale(queue, book, engine, _LIMITS, inbox=Inbox())
        else:
            done = drain(queue, book, engine, _LIMITS, inbox=Inbox())
    report.write_text(done.to_json())


if __name__ == "__main__":
    _, task, url, database, consumer, report = sys.argv
    work(task, url, database, consumer, Path(report))
