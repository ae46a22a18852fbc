"""EventLoop: where `async def` handlers run: in a thread of its own, for all drains of one AsyncEngine."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from conquiet.extras import needs_extra
from conquiet.logs import naming_messages_of_tasks

with needs_extra("asyncio", "greenlet", part="an async def handler"):
    # SQLAlchemy imports it with its first use, which would be in a handler.
    import_module("greenlet")

from sqlalchemy.util import greenlet_spawn

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class EventLoop:
    """Lives from its first `enter` to its last `leave`.

    The connections of an AsyncEngine belong to one event loop: all drains with the same engine
    share it, and the pool is emptied at its end. Plain functions run here in a greenlet, as SQLAlchemy's own
    do: each call of theirs to the database gives way to other tasks.
    """

    def __init__(self, engine: AsyncEngine | None) -> None:
        self._engine = engine
        self._users = 0
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._should_end: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="conquiet-event-loop", daemon=True)

    @classmethod
    def enter(cls, engine: AsyncEngine | None) -> EventLoop:
        """The loop of this engine, `None` for handlers without one; started if it does not run."""
        with _lock:
            loop = _running.get(engine)
            if loop is None:
                # Pools of single connections do not count them.
                count: Callable[[], int] | None = getattr(engine and engine.pool, "checkedin", None)
                if count is not None and count():
                    raise ValueError(
                        "the AsyncEngine has open connections of another event loop, which this one cannot "
                        "use: `await engine.dispose()` there, or give the drain an engine of its own"
                    )
                loop = cls(engine)
                loop._thread.start()
                loop._is_ready.wait()
                if not hasattr(loop, "_should_end"):
                    raise RuntimeError("the thread of the event loop could not start it; stderr says why")
                _running[engine] = loop
            loop._users += 1
            return loop

    def leave(self) -> None:
        """End the loop if nobody else is in it; tasks that handlers have left in it are cancelled."""
        # With the lock: the next loop of the engine begins when its pool is empty.
        with _lock:
            self._users -= 1
            if not self._users:
                del _running[self._engine]
                self._loop.call_soon_threadsafe(self._should_end.set)
                self._thread.join()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> Future[None]:
        """Run it as a task, from any thread, with the context variables of this one."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call it in the loop's thread, and do not wait for that."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a plain function in a task, and wait for its end; an interrupt cancels it."""
        with self.calling(function, *arguments) as done:
            return done.result()

    @contextmanager
    def calling(self, function: Callable[..., _T], *arguments: Any) -> Iterator[Future[_T]]:
        """As `call`, for a block that waits for its end itself; what the block raises cancels it."""
        done: Future[_T] = Future()

        async def run() -> None:
            try:
                done.set_result(await greenlet_spawn(function, *arguments))
            except BaseException as error:  # noqa: BLE001 -- raised where the result is waited for
                done.set_exception(error)

        task = self.start(run())
        try:
            yield done
        except BaseException:
            if not done.done():
                task.cancel()
                wait([done])
            raise

    def _run(self) -> None:
        try:
            with naming_messages_of_tasks(), asyncio.Runner(loop_factory=_Loop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        finally:
            # Else who waits for the start would do so for ever.
            self._is_ready.set()

    async def _serve(self) -> None:
        self._should_end = asyncio.Event()
        self._is_ready.set()
        await self._should_end.wait()
        if self._engine is not None:
            try:
                await self._engine.dispose()
            except Exception:  # noqa: BLE001 -- the log has it
                _log.exception("the connections of an event loop's pool could not be closed")


class _Loop(asyncio.SelectorEventLoop):
    """One for which no thread comes too late, as that of a driver whose connection was refused."""

    def call_soon_threadsafe(  # type: ignore[override]  # of any arguments
        self, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *arguments, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            return asyncio.Handle(callback, arguments, self, context)


_lock = threading.Lock()
_running: dict[AsyncEngine | None, EventLoop] = {}


def _start_anew() -> None:
    # A forked child has the memory of its parent, and none of its threads.
    global _lock
    _lock = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_start_anew)
