"""A program: runs one queue trigger as the triggerer does, processes its events, and dies at a fatal one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.base import BaseEventTrigger
from airflow.triggers.shared_stream import SharedStreamManager


class Processing:
    """Writes the numbers of processed messages down; the fatal one is received and not processed, once."""

    def __init__(self, done: Path, fatal: int) -> None:
        self._done = done
        self._died = done.with_suffix(".died")
        self._fatal = fatal

    def __call__(self, number: int) -> None:
        if number == self._fatal and not self._died.exists():
            self._died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with self._done.open("a") as lines:
            lines.write(f"{number}\n")


async def watch_pubsub(channel: str, process: Processing) -> None:
    """Airflow's own trigger ends with each event and is started again."""
    while True:
        trigger = MessageQueueTrigger(scheme="redis+pubsub", channels=channel, poll_interval=0.01)
        async for event in trigger.run():
            process(int(event.payload["data"]))


async def watch_stream(stream: str, process: Processing) -> None:
    """Ours goes over the ack channel: its event counts as stored when it is processed."""
    trigger: BaseEventTrigger = MessageQueueTrigger(
        scheme="redis+stream", stream=stream, fields=["number"]
    ).trigger
    manager = SharedStreamManager()
    key: Any = trigger.shared_stream_key()
    events = trigger.filter_shared_stream(manager.subscribe(trigger_id=1, trigger=trigger, key=key))
    async for event in events:
        seq = manager.bind_pending_event(trigger_id=1, key=key)
        process(event.payload["fields"]["number"])
        if seq is not None:
            manager.confirm_persisted([seq])


def main(kind: str, name: str, done: str, fatal: str) -> None:
    """Watch until somebody ends this process."""
    watch = watch_pubsub if kind == "redis+pubsub" else watch_stream
    asyncio.run(watch(name, Processing(Path(done), int(fatal))))


if __name__ == "__main__":
    main(*sys.argv[1:])
