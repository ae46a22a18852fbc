"""Live: open pages get their view again when it has changed, by server-sent events."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from conquiet.errors import ConquietError
from conquiet.mq import MessageBrowser
from conquiet.page.site import Site
from conquiet.page.views.messages import summary_of

#: A view is read at most for this part of the time: one that takes long is updated less often.
_BUSY = 0.1
#: Between two signs of life, so that a browser or proxy does not give up.
_KEEP_ALIVE_S = 5.0
#: Messages that wait to be sent to a browser; older ones are left out.
_TAIL_WAITING = 500
_TAIL_FIRST = 20
#: More rows than that are not sent in that time: nobody could read them.
_TAIL_MOST, _TAIL_SPAN_S = 100, 1.0


class LiveStreams:
    """The event streams that are open; there are at most so many."""

    def __init__(self, most: int, longest_s: float) -> None:
        self._most = most
        self._longest_s = longest_s
        self._open = 0
        #: Set when the process ends: a server waits for its open responses.
        self.is_closing = threading.Event()

    @property
    def is_full(self) -> bool:
        return self._open >= self._most

    def response(self, events: AsyncIterator[str]) -> StreamingResponse:
        """An event stream."""

        async def counted() -> AsyncIterator[str]:
            self._open += 1
            ends_at = time.monotonic() + self._longest_s
            try:
                async for event in events:
                    yield event
                    if time.monotonic() > ends_at:
                        return
            finally:
                self._open -= 1

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(counted(), media_type="text/event-stream", headers=headers)


async def view_events(
    request: Request, streams: LiveStreams, render: Callable[[], str], refresh_s: float
) -> AsyncIterator[str]:
    """The view as HTML, whenever it is another one than before."""
    sent, spoke_at = b"", time.monotonic()
    yield "retry: 1000\n\n"
    while not streams.is_closing.is_set() and not await request.is_disconnected():
        began = time.monotonic()
        try:
            text = await asyncio.to_thread(render)
            digest = sha256(text.encode()).digest()
            if digest != sent:
                yield _event("view", text)
                sent, spoke_at = digest, time.monotonic()
        except ConquietError as error:
            yield _event("problem", str(error))
            sent = b""
        took = time.monotonic() - began
        if time.monotonic() - spoke_at > _KEEP_ALIVE_S:
            yield ": alive\n\n"
            spoke_at = time.monotonic()
        ends_at = time.monotonic() + max(refresh_s, took / _BUSY)
        while (left := ends_at - time.monotonic()) > 0 and not streams.is_closing.is_set():
            await asyncio.sleep(min(left, 0.25))


async def tail_events(
    request: Request, streams: LiveStreams, site: Site, name: str, row: Callable[[Any, str], str]
) -> AsyncIterator[str]:
    """The last messages, then new ones, each as a row; a browser that comes again knows some of them."""
    loop, stop = asyncio.get_running_loop(), threading.Event()
    waiting: asyncio.Queue[str] = asyncio.Queue(_TAIL_WAITING)
    comes_again = "last-event-id" in request.headers or "again" in request.query_params

    def put(event: str) -> None:
        if waiting.full():
            waiting.get_nowait()
        waiting.put_nowait(event)

    def read() -> None:
        """Of a topic that more is sent to than people can read, the newest from time to time."""
        try:
            last = _TAIL_MOST if comes_again else _TAIL_FIRST
            while not stop.is_set():
                ends_at, left = time.monotonic() + _TAIL_SPAN_S, _TAIL_MOST
                for message in MessageBrowser(site.client).tail(name, lambda: stop.wait(0.5), last=last):
                    if time.monotonic() > ends_at:
                        ends_at, left = time.monotonic() + _TAIL_SPAN_S, _TAIL_MOST
                    if stop.is_set() or left == 0:
                        break
                    left -= 1
                    text = row(message, summary_of(site, message))
                    loop.call_soon_threadsafe(put, _event("message", text, str(message.position)))
                last = _TAIL_FIRST
                stop.wait(max(0.0, ends_at - time.monotonic()))
        except ConquietError as error:
            loop.call_soon_threadsafe(put, _event("problem", str(error)))

    reader = threading.Thread(target=read, name="conquiet-page-tail", daemon=True)
    reader.start()
    try:
        yield "retry: 1000\n\n"
        while not streams.is_closing.is_set() and not await request.is_disconnected():
            try:
                yield await asyncio.wait_for(waiting.get(), 1.0)
            except TimeoutError:
                yield ": alive\n\n"
    finally:
        stop.set()


def _event(kind: str, text: str, event_id: str = "") -> str:
    # As JSON it has no line breaks, which would end the event.
    return f"event: {kind}\ndata: {json.dumps(text)}\n" + (f"id: {event_id}\n\n" if event_id else "\n")
