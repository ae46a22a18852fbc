"""The launching side: reads a stream until the external process reports that it is done, or has ended."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dagster import PipesMessageReader
from dagster_pipes import PipesParams

from conquiet.errors import ConquietError, QueueError
from conquiet.queue.batch_size import BatchSize
from conquiet.queue.connection import visible_errors
from conquiet.queue.member import entries_of
from conquiet.queue.message import pairs_of
from dagster_conquiet.pipes.writer import RECONNECT_PARAM, STREAM_PARAM, TTL_PARAM, URL_PARAM, URL_VARIABLE
from dagster_conquiet.resources import RedisStreamsResource
from dagster_conquiet.steps.entries import PipesEntry, pipes_entries

_PAGE = 500
#: How long one read waits, and so how late the end of the process may be noticed.
_BLOCK_MS = 200


class PipesMessagesLostError(ConquietError):
    """Something that the external process reported did not arrive; `problems` says what.

    Examples:
        >>> error = PipesMessagesLostError("pipes:1", ["message 3 is missing"])
        >>> error.problems
        ('message 3 is missing',)
    """

    def __init__(self, stream: str, problems: list[str]) -> None:
        self.stream = stream
        self.problems = tuple(problems)
        super().__init__(
            f"not all that the external process reported by stream {stream!r} arrived: {'; '.join(problems)}"
        )


class RedisStreamMessageReader(PipesMessageReader):
    """Give it to a Pipes client, `PipesSubprocessClient(message_reader=…)`; one stream per launch.

    What a process wrote before it was killed is read too, and so is what several processes of one launch
    write, at once or one after the other. A connection that breaks is made again. The step
    fails if the process ended well and something that it reported is missing or malformed. The stream is
    deleted at the end, and expires if this side dies as well.

    Examples:
        >>> reader = RedisStreamMessageReader(RedisStreamsResource(host="redis.example.com"))
        >>> client = dg.PipesSubprocessClient(message_reader=reader)
    """

    def __init__(
        self,
        redis_streams: RedisStreamsResource,
        *,
        writer_url: str | None = None,
        prefix: str = "pipes",
        grace_s: float = 0.0,
        reconnect_s: float = 60.0,
        ttl_ms: int = 24 * 3_600_000,
    ) -> None:
        """The reader of every launch of a Pipes client.

        Args:
            writer_url: sent to the external process in its parameters; without it, the process must know the
                server itself. Parameters are visible with its environment: send no password.
            grace_s: how long to wait for the last messages of a process that ended without closing, for
                launchers that return before the process' output is complete.
            reconnect_s: for how long the server may be unavailable, on both sides, before messages are lost.
            ttl_ms: how long after its last message the stream expires if it was not deleted.
        """
        self._redis_streams = redis_streams
        self._writer_url = writer_url
        self._prefix = prefix
        self._grace_s = grace_s
        self._reconnect_s = reconnect_s
        self._ttl_ms = ttl_ms

    @contextmanager
    def read_messages(self, handler: Any) -> Iterator[PipesParams]:
        """Pass every message to Dagster, in order, until the block ends.

        Raises:
            PipesMessagesLostError: the block ended well, and not everything arrived.
        """
        stream = f"{self._prefix}:{uuid.uuid4().hex}"
        params: dict[str, Any] = {
            STREAM_PARAM: stream,
            TTL_PARAM: self._ttl_ms,
            RECONNECT_PARAM: self._reconnect_s,
        }
        if self._writer_url is not None:
            params[URL_PARAM] = self._writer_url
        reading = _Reading(stream, handler, grace_s=self._grace_s, reconnect_s=self._reconnect_s)
        thread = threading.Thread(target=reading.run, args=(self._redis_streams,))
        thread.start()
        try:
            yield params
        finally:
            reading.has_ended.set()
            thread.join()
            # It expires if the server does not answer now.
            visible = visible_errors("delete", stream=stream, group=None)
            with suppress(QueueError), visible, self._redis_streams.connect() as client:
                client.delete(stream)
        if problems := reading.problems():
            raise PipesMessagesLostError(stream, problems)

    def no_messages_debug_text(self) -> str:
        """What to check when no message came."""
        return (
            "Attempted to read messages from a Redis stream. Expected RedisStreamMessageWriter to be passed "
            f"to open_dagster_pipes in the external process, with the same server, by url or {URL_VARIABLE}."
        )


class _Reading:
    """Reads the stream of one launch, in a thread of its own."""

    def __init__(self, stream: str, handler: Any, *, grace_s: float, reconnect_s: float) -> None:
        self._stream = stream
        self._handler = handler
        self._grace_s = grace_s
        self._reconnect_s = reconnect_s
        self._last_id = "0-0"
        self._answered_at = time.monotonic()
        self._sizes = BatchSize(_PAGE)
        #: Of each writer, the number of its last message.
        self._numbers: dict[str, int] = {}
        #: The one that opened last, unless it has closed.
        self._open_writer: str | None = None
        self._problems: list[str] = []
        self.has_ended = threading.Event()

    def run(self, redis_streams: RedisStreamsResource) -> None:
        """Read until the process has ended and nothing more comes; connect again meanwhile."""
        while True:
            try:
                visible = visible_errors("read", stream=self._stream, group=None)
                with visible, redis_streams.connect() as client:
                    self._read(client)
                return  # noqa: TRY300 -- ended: the loop is for broken connections
            except QueueError as error:
                if time.monotonic() - self._answered_at > self._reconnect_s:
                    self._problems.append(f"the connection was lost: {error}")
                    return
                time.sleep(_BLOCK_MS / 1000)
            except Exception:  # noqa: BLE001 -- this thread has no caller: Dagster gets the error, and shows it
                self._problems.append("reading failed, see the log")
                self._handler.report_pipes_framework_exception("RedisStreamMessageReader", sys.exc_info())
                return

    def problems(self) -> list[str]:
        """What is known to be missing; also if the process never said that it has reported everything."""
        problems = list(self._problems)
        if self._last_id == "0-0":
            problems.append(
                "nothing came at all: the process has not opened RedisStreamMessageWriter, or it wrote to "
                "another server"
            )
        elif not self._is_closed:
            problems.append("the process ended without closing, what it reported last may be missing")
        return problems

    @property
    def _is_closed(self) -> bool:
        """Whether the process that opened last has closed; an earlier one may have been replaced by it."""
        return self._handler.received_closed_message and self._open_writer is None

    def _read(self, client: Any) -> None:
        give_up_at = None
        while True:
            # Checked before the read: what was written before the end is in the stream by then.
            is_last_read = self.has_ended.is_set()
            reply = client.xread({self._stream: self._last_id}, count=self._sizes.next, block=_BLOCK_MS)
            self._answered_at = time.monotonic()
            entries = entries_of(reply)
            self._sizes.learn_bytes(
                [sum(len(value) for _, value in pairs_of(fields)) for _, fields in entries]
            )
            self._sizes.took(0.0)
            read = pipes_entries(entries)
            for entry in read:
                self._take(entry)
                self._last_id = entry.id
            if is_last_read and not read:
                give_up_at = give_up_at or time.monotonic() + self._grace_s
                if self._is_closed or time.monotonic() >= give_up_at:
                    return

    def _take(self, entry: PipesEntry) -> None:
        if entry.writer is not None and entry.number is not None:
            last = self._numbers.get(entry.writer, 0)
            if entry.number <= last:
                # Written again after a reply that was lost.
                return
            if entry.number > last + 1:
                self._problems.append(f"messages {last + 1} to {entry.number - 1} are missing")
            self._numbers[entry.writer] = entry.number
        if entry.message is None:
            self._problems.append(f"entry {entry.id} is malformed")
            return
        if entry.message["method"] == "opened":
            self._open_writer = entry.writer
        elif entry.message["method"] == "closed" and entry.writer == self._open_writer:
            self._open_writer = None
        try:
            self._handler.handle_message(entry.message)
        except Exception as error:  # noqa: BLE001 -- one that Dagster refuses must not stop the others
            self._problems.append(f"entry {entry.id} was refused: {type(error).__name__}: {error}")
