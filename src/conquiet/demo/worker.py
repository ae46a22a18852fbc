"""One worker process of the demo: claims what dead workers left, then drains; prints its reports as JSON."""

from __future__ import annotations

import json
import sys

from conquiet.consume import drain, drain_stale
from conquiet.db import Inbox
from conquiet.demo.orders import book, open_database, open_queue


def work(url: str, database: str, consumer: str, max_messages: int) -> None:
    """Run one worker to its end, or until it is killed."""
    engine = open_database(database)
    with open_queue(url, consumer) as queue:
        claimed = drain_stale(queue, book, engine, max_messages, inbox=Inbox())
        drained = drain(queue, book, engine, max_messages, inbox=Inbox(), idle_ms=300)
    print(json.dumps({"claimed": claimed.to_dict(), "drained": drained.to_dict()}))


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
