"""A consumer in a process of its own: `python -m … url topic handler settings`."""

from __future__ import annotations

import json
import os
import sys
import time

from conquiet.mq import PartitionConsumer, RetryPolicy, Topics
from conquiet.queue.connection import open_client
from tests.with_redis.mq.consuming import GROUP, quick

client = open_client(sys.argv[1])
topic = Topics(client).open(sys.argv[2])
note = f"test:seen:{topic.name}"


def die_of_poison(msg) -> None:
    """Note each message, and die in the middle of those that say so."""
    client.rpush(note, json.dumps([msg.payload["n"], msg.attempt, os.getpid()]))
    if msg.payload.get("poison"):
        os._exit(9)


def hang(msg) -> None:
    """Note the message and never come back."""
    client.rpush(note, json.dumps([msg.payload["n"], msg.attempt, os.getpid()]))
    time.sleep(600)


def hang_at_last(msg) -> None:
    """Handle at once, but hang in the message that says so."""
    client.rpush(note, json.dumps([msg.payload["n"], msg.attempt, os.getpid()]))
    if msg.payload.get("hang"):
        time.sleep(600)


if __name__ == "__main__":
    settings = json.loads(sys.argv[4])
    if "max_attempts" in settings:
        settings["retry"] = RetryPolicy(max_attempts=settings.pop("max_attempts"))
    PartitionConsumer(topic, GROUP, globals()[sys.argv[3]], config=quick(**settings)).run()
