"""Coroutines: `async def` handlers in an event loop, several at a time, each with its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from sqlalchemy.util import greenlet_spawn

from conquiet.consume.attempt import Attempt, Attempts
from conquiet.consume.channel import M
from conquiet.consume.event_loop import EventLoop
from conquiet.consume.order import Order
from conquiet.consume.workers import KEEP_CONNECTION_S, TURN, Workers
from conquiet.logs import name_messages_in_task


class Coroutines(Workers[M]):
    """Each worker is a task of the event loop with a connection of its own."""

    def __init__(
        self, loop: EventLoop, most: int, order: Order[M], new_attempts: Callable[[], Attempts[M]]
    ) -> None:
        super().__init__(most, order, new_attempts)
        self._loop = loop
        self._jobs: asyncio.Queue[Sequence[M] | None] = asyncio.Queue()
        self._running: list[Future[None]] = []

    def _give(self, messages: Sequence[M] | None) -> None:
        self._loop.call_soon(self._jobs.put_nowait, messages)

    @property
    def is_busy(self) -> bool:
        return any(not worker.done() for worker in self._running) or not self._ended.empty()

    def _start(self, attempts: Attempts[M], _number: int) -> None:
        self._running.append(self._loop.start(self._work(attempts)))

    async def _work(self, attempts: Attempts[M]) -> None:
        name_messages_in_task(attempts)
        number = 0
        try:
            while (messages := await self._next_job(attempts, number := number + 1)) is not None:
                try:
                    # All that is done for a message, as in a thread; what it waits for, the task awaits.
                    attempt = await greenlet_spawn(attempts.run, messages)
                except BaseException as error:  # noqa: BLE001 -- an exit: raised in the loop's thread
                    attempt = Attempt(messages, attempts.in_handler_since, error=error)
                self._ended.put(attempt)
        finally:
            await greenlet_spawn(attempts.release)

    async def _next_job(self, attempts: Attempts[M], number: int) -> Sequence[M] | None:
        if number % TURN:
            try:
                return await asyncio.wait_for(self._jobs.get(), KEEP_CONNECTION_S)
            except TimeoutError:
                pass
        await greenlet_spawn(attempts.release)
        return await self._jobs.get()
