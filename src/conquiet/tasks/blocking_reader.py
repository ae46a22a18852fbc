"""BlockingReader: waits for new tasks on a connection of its own, which another thread can wake."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis import Redis

from conquiet.errors import QueueError
from conquiet.queue.connection import Client, is_unanswered, run_command, unparsed_view, visible_errors
from conquiet.tasks.keys import GROUP, QueueKeys
from conquiet.tasks.scripts import Taken

_TRY_AGAIN_S = 0.005
#: Where it cannot wait on the server.
_PAUSE_MS = 50


class Found(NamedTuple):
    """What a wait has read of one queue: at most one entry of each priority."""

    keys: QueueKeys
    entries: list[Taken]
    #: Whether it is one of the highest priority in use.
    is_highest: bool


class BlockingReader:
    """Reads new entries of several streams for one consumer; one thread reads, another one may wake it."""

    def __init__(self, client: Client, consumer: str) -> None:
        self._client = client
        self._consumer = consumer
        self._connection_id: int | None = None
        self._is_waiting = False
        self._is_woken = False
        self._reader = unparsed_view(client)
        # A cluster's client cannot keep to one connection.
        self._can_be_woken = isinstance(client, Redis)

    def wait(self, queues: Sequence[QueueKeys], wait_ms: int) -> list[Found]:
        """Wait for a new task in one of these queues, and read it.

        It is delivered to one of all that wait; a script would wake all of them for each task. Of several
        that were added in one step a server returns one of each stream, or before Redis 7 one of the stream
        that was written first: unless that `is_highest`, the caller has to look for a higher one.
        """
        by_stream = {stream: keys for keys in queues for stream in self._streams_in_use(keys)}
        # A cluster has each queue on one node, and no wait for several of them.
        if not by_stream or (len(queues) > 1 and not self._can_be_woken):
            time.sleep(min(wait_ms, _PAUSE_MS) / 1000)
            return []
        read: dict[QueueKeys, list[Taken]] = {}
        for name, entries in self.read(list(by_stream), wait_ms):
            stream = name.decode()
            priority = int(stream.rpartition(":")[2])
            taken = [Taken(priority, entry.decode(), fields, 1, False) for entry, fields in entries]
            read.setdefault(by_stream[stream], []).extend(taken)
        # The first of each queue is its highest.
        highest = {keys: stream for stream, keys in reversed(by_stream.items())}
        return [
            Found(keys, taken, len(taken) == 1 and keys.streams[taken[0].priority] == highest[keys])
            for keys, taken in read.items()
        ]

    def _streams_in_use(self, keys: QueueKeys) -> list[str]:
        names = run_command(self._client, "HKEYS", keys.meta, stream=keys.prefix, group=GROUP)
        used = sorted((name for name in names if name[:1] == b"p" and name[1:].isdigit()), reverse=True)
        return [keys.streams[int(name[1:])] for name in used]

    def read(self, streams: Sequence[str], wait_ms: int) -> Iterable[tuple[bytes, Any]]:
        """What came first, one entry; nothing after `wait_ms`, or when it is woken."""
        if self._can_be_woken and self._connection_id is None:
            self._keep_connection(streams[0])
        command = ("XREADGROUP", "GROUP", GROUP, self._consumer, "COUNT", 1, "BLOCK", wait_ms, "STREAMS")
        self._is_waiting = True
        try:
            # Asked after the line above: one of the two threads sees what the other one has set.
            if self._is_woken:
                return ()
            reply = run_command(
                self._reader, *command, *streams, *(">" for _ in streams), stream=streams[0], group=GROUP
            )
        finally:
            self._is_waiting = False
        return reply.items() if isinstance(reply, dict) else reply or ()

    def wake(self, *, for_good: bool = True) -> None:
        """End the wait, and every later one; without the right to CLIENT UNBLOCK it ends by itself."""
        self._is_woken = self._is_woken or for_good
        while self._is_waiting and self._connection_id is not None:
            try:
                # 0: the read is on its way to the server, or its reply is on its way back.
                command = ("CLIENT UNBLOCK", self._connection_id)
                if run_command(self._client, *command, stream="(server)", group=GROUP):
                    return
            except QueueError:
                return
            time.sleep(_TRY_AGAIN_S)

    def _keep_connection(self, stream: str) -> None:
        view = self._reader
        assert isinstance(view, Redis)  # noqa: S101 -- for mypy: a cluster's client does not come here
        with visible_errors("connect", stream=stream, group=GROUP):
            self._reader = Redis(connection_pool=view.connection_pool, single_connection_client=True)
        self._reader.response_callbacks = view.response_callbacks
        try:
            self._connection_id = run_command(self._reader, "CLIENT ID", stream=stream, group=GROUP)
        except QueueError as error:
            if is_unanswered(error):
                raise
            # A user without the right to it.
            self._can_be_woken = False
