"""The launching side: reads a stream until the external process reports that it is done, or has ended."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dagster import PipesMessageReader
from dagster_pipes import PipesParams

from conquiet.queue import Client
from conquiet.queue.batch_size import BatchSize
from conquiet.queue.member import entries_of
from conquiet.queue.message import pairs_of
from dagster_conquiet.pipes.writer import STREAM_PARAM, TTL_PARAM, URL_PARAM, URL_VARIABLE
from dagster_conquiet.resources import RedisStreamsResource
from dagster_conquiet.steps.entries import json_of_entries

_PAGE = 500
#: How long one read waits, and so how late the end of the process may be noticed.
_BLOCK_MS = 200


class RedisStreamMessageReader(PipesMessageReader):
    """Give it to a Pipes client, `PipesSubprocessClient(message_reader=…)`; one stream per launch.

    What a process wrote before it was killed is read too. The stream is deleted at the end, and expires if
    this side dies as well.
    """

    def __init__(
        self,
        redis_streams: RedisStreamsResource,
        *,
        writer_url: str | None = None,
        prefix: str = "pipes",
        grace_s: float = 0.0,
        ttl_ms: int = 24 * 3_600_000,
    ) -> None:
        """The reader of every launch of a Pipes client.

        Args:
            writer_url: sent to the external process in its parameters; without it, the process must know the
                server itself. Parameters are visible with its environment: send no password.
            grace_s: how long to wait for the last messages of a process that ended without closing, for
                launchers that return before the process' output is complete.
            ttl_ms: how long after its last message the stream expires if it was not deleted.
        """
        self._redis_streams = redis_streams
        self._writer_url = writer_url
        self._prefix = prefix
        self._grace_s = grace_s
        self._ttl_ms = ttl_ms

    @contextmanager
    def read_messages(self, handler: Any) -> Iterator[PipesParams]:
        """Pass every message to Dagster, in order, until the process closed or the block ends."""
        stream = f"{self._prefix}:{uuid.uuid4().hex}"
        params: dict[str, Any] = {STREAM_PARAM: stream, TTL_PARAM: self._ttl_ms}
        if self._writer_url is not None:
            params[URL_PARAM] = self._writer_url
        has_ended = threading.Event()
        with self._redis_streams.connect() as client:
            thread = threading.Thread(target=self._read, args=(client, stream, handler, has_ended))
            thread.start()
            try:
                yield params
            finally:
                has_ended.set()
                thread.join()
                client.delete(stream)

    def no_messages_debug_text(self) -> str:
        """What to check when no message came."""
        return (
            "Attempted to read messages from a Redis stream. Expected RedisStreamMessageWriter to be passed "
            f"to open_dagster_pipes in the external process, with the same server, by url or {URL_VARIABLE}."
        )

    def _read(self, client: Client, stream: str, handler: Any, has_ended: threading.Event) -> None:
        last_id, give_up_at, sizes = "0-0", None, BatchSize(_PAGE)
        try:
            while not handler.received_closed_message:
                # Checked before the read: what was written before the end is in the stream by then.
                is_last_read = has_ended.is_set()
                reply = client.xread({stream: last_id}, count=sizes.next, block=_BLOCK_MS)
                entries = entries_of(reply)
                sizes.learn_bytes([sum(len(value) for _, value in pairs_of(fields)) for _, fields in entries])
                sizes.took(0.0)
                read = json_of_entries(entries)
                for entry_id, message in read:
                    last_id = entry_id
                    handler.handle_message(message)
                if is_last_read and not read:
                    give_up_at = give_up_at or time.monotonic() + self._grace_s
                    if time.monotonic() >= give_up_at:
                        return
        except Exception:  # noqa: BLE001 -- this thread has no caller: Dagster gets the error, and shows it
            handler.report_pipes_framework_exception("RedisStreamMessageReader", sys.exc_info())
