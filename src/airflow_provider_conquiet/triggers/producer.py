"""MessageProducer: Redis Streams behind Airflow's ack channel (Airflow 3.3 and later)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer
from redis.exceptions import RedisError

from airflow_provider_conquiet.triggers.backlog import CONNECTION_MISTAKES, LONGEST_RETRY_S
from airflow_provider_conquiet.triggers.watched_stream import Watch, WatchedStream
from conquiet import ConquietError, QueueMessage
from conquiet.queue.batch_size import BATCH_BYTES

log = logging.getLogger(__name__)

T = TypeVar("T")

#: What may be in flight, whatever its number.
_MAX_BYTES = 4 * BATCH_BYTES


@dataclass(slots=True)
class Received:
    """Messages on their way through Airflow as one event, seen by the producer and by the trigger."""

    msgs: tuple[QueueMessage, ...]
    #: How many triggers have handed their event over, or decided against one.
    passed: int = 0
    #: Why a trigger refused some of them, by entry id.
    refusals: dict[str, str] = field(default_factory=dict)


class MessageProducer(SharedStreamProducer):
    """Reads messages and acks each one after Airflow has stored its event; lives as long as its watcher.

    What is read and not settled is bounded by `max_in_flight`, and to 32 MiB. A message whose event was not
    stored stays pending and is read again. While Redis is unavailable it waits, and keeps what could not be
    settled.
    """

    def __init__(self, watch: Watch, *, max_in_flight: int, batch_events: int = 1) -> None:
        self._stream = WatchedStream(watch)
        self._max_in_flight = max_in_flight
        self._batch_events = batch_events
        #: Read and not settled: waiting to be yielded, or in flight. Not by entry id, which a failover may
        #: give to a new message meanwhile. Of a message that was delivered again, the latest delivery.
        self._taken: dict[tuple[str, str], QueueMessage] = {}
        self._waiting: deque[QueueMessage] = deque()
        self._unsettled: list[tuple[Received, AdvanceOutcome]] = []
        self._has_room = asyncio.Event()
        # Of its own: the loop's threads are few, and shared with every other trigger.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"watch-{watch.stream}")

    async def open_stream(self) -> AsyncIterator[tuple[Received, Received]]:
        """Yield messages for ever; the second of each pair is the handle for `advance`."""
        retry_s = 0.0
        while True:
            while (room := self._room()) <= 0:
                self._has_room.clear()
                await self._has_room.wait()
            try:
                await self._settle()
                for msg in [] if self._waiting else await self._in_thread(self._stream.take, room):
                    if msg.identity not in self._taken:
                        self._waiting.append(msg)
                    # Delivered again while in flight, its delivery count is another now.
                    self._taken[msg.identity] = msg
            except (*CONNECTION_MISTAKES, ConquietError, RedisError, OSError) as error:
                retry_s = min(2 * retry_s or 1.0, LONGEST_RETRY_S)
                is_mistake = isinstance(error, CONNECTION_MISTAKES)
                words = "nothing is watched: " if is_mistake else ""
                log.log(
                    logging.ERROR if is_mistake else logging.WARNING,
                    "%s%s; trying again in %.0f s",
                    *(words, error, retry_s),
                )
                await self._in_thread(self._stream.close)
                await asyncio.sleep(retry_s)
                continue
            retry_s = 0.0
            left = min(room, len(self._waiting))
            while left > 0:
                size = min(left, self._batch_events)
                left -= size
                received = Received(tuple(self._waiting.popleft() for _ in range(size)))
                yield received, received

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Settle messages that Airflow is done with; never raises if Redis fails.

        An error here would end the watcher, and with it everything that is in flight.
        """
        self._unsettled += [(item.broker_payload, item.outcome) for item in batch]
        try:
            await self._settle()
        except (ConquietError, RedisError, OSError) as error:
            log.warning("%s; %d messages will be settled later", error, len(self._unsettled))
        self._has_room.set()

    async def aclose(self) -> None:
        """Close the client and end the thread."""
        await self._in_thread(self._stream.close)
        self._thread.shutdown(wait=False)

    async def _settle(self) -> None:
        settling, self._unsettled = self._unsettled, []
        try:
            # Airflow counts an event as accepted too if the trigger was cancelled while it was handed over;
            # only the trigger itself knows that it was.
            done = [
                received
                for received, outcome in settling
                if outcome.is_clean and received.passed >= outcome.acked
            ]
            stored = [msg.id for one in done for msg in one.msgs if msg.id not in one.refusals]
            if stored:
                await self._in_thread(self._stream.ack, stored)
            for one in done:
                for msg in one.msgs:
                    if msg.id in one.refusals:
                        latest = self._taken.get(msg.identity, msg)
                        await self._in_thread(self._stream.dead_letter, latest, one.refusals[msg.id])
        except BaseException:
            self._unsettled = settling + self._unsettled
            raise
        for received, _ in settling:
            for msg in received.msgs:
                self._taken.pop(msg.identity, None)

    def _room(self) -> int:
        """How many messages may be handed over now."""
        waiting = sum(len(msg.data) for msg in self._waiting)
        if sum(len(msg.data) for msg in self._taken.values()) - waiting >= _MAX_BYTES:
            return 0
        return self._max_in_flight - len(self._taken) + len(self._waiting)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
