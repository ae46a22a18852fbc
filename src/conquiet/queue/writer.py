"""StreamWriter: adds messages to one stream, without a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from conquiet.arguments import check_name, check_positive_int
from conquiet.payload import Payload, encode_payload
from conquiet.queue.connection import (
    Client,
    add_entries,
    key_beside,
    queue_error,
    run_command,
    visible_errors,
)
from conquiet.queue.scripts import enqueue_once
from conquiet.tracing import Where, active_traces

#: Payloads that one script adds: the server does nothing else meanwhile.
_ONCE_AT_A_TIME = 500


class StreamWriter:
    """Adds messages to one stream; every Redis failure is raised as `QueueError`.

    For a process that only sends: a group without consumers would keep every entry from being trimmed.
    """

    def __init__(self, client: Client, stream: str, *, group: str | None = None) -> None:
        """`group` is for error messages only."""
        check_name("stream", stream)
        self.client = client
        self.stream = stream
        self._key = stream.encode()
        self._where = Where(destination=stream)
        self._group = group

    def enqueue(self, payload: Payload) -> str:
        """Add one message and return its entry id."""
        traces = active_traces()
        if traces is None:
            return self._enqueue(payload)
        with traces.sending(self._where) as sending:
            entry_id = self._enqueue(traces.with_context(payload, sending.headers[0]))
            sending.sent([entry_id])
        return entry_id

    def _enqueue(self, payload: Payload) -> str:
        command = ("XADD", self._key, "*", "data", encode_payload(payload))
        entry_id: bytes = run_command(self.client, *command, stream=self.stream, group=self._group)
        return entry_id.decode()

    def enqueue_many(self, payloads: Iterable[Payload], *, batch_size: int = 1_000) -> list[str]:
        """Add messages in order, `batch_size` to a round trip; if one payload is refused, none is added."""
        check_positive_int("batch_size", batch_size)
        return self._traced(list(payloads), lambda given: self._enqueue_many(given, batch_size))

    def _enqueue_many(self, payloads: Sequence[Payload], batch_size: int) -> list[str]:
        encoded = [(self._key, encode_payload(payload)) for payload in payloads]
        ids: list[str] = []
        for start in range(0, len(encoded), batch_size):
            with visible_errors("XADD", stream=self.stream, group=self._group):
                replies = add_entries(self.client, encoded[start : start + batch_size])
            ids += [reply for reply in replies if isinstance(reply, str)]
            for reply in replies:
                if isinstance(reply, Exception):
                    operation = f"XADD of {len(encoded)} messages, {len(ids)} were added,"
                    raise queue_error(operation, reply, stream=self.stream, group=self._group) from reply
        return ids

    def enqueue_once(
        self, payloads: Iterable[Payload], *, dedupe_id: str, window_ms: int = 24 * 3_600_000
    ) -> list[str]:
        """Add messages in order, each once: a second call with this id returns the first one's entry ids.

        What a call that died in the middle had not added, the next one adds. Payloads are identified by their
        index in the list, not by their content.

        Args:
            window_ms: how long after the last call the id is remembered.
        """
        check_name("dedupe_id", dedupe_id)
        check_positive_int("window_ms", window_ms)
        return self._traced(list(payloads), lambda given: self._enqueue_once(given, dedupe_id, window_ms))

    def _enqueue_once(self, payloads: Sequence[Payload], dedupe_id: str, window_ms: int) -> list[str]:
        encoded = [encode_payload(payload) for payload in payloads]
        added = key_beside(self.stream, f"once:{dedupe_id}")
        ids: list[str] = []
        for first in range(0, len(encoded), _ONCE_AT_A_TIME):
            some = encoded[first : first + _ONCE_AT_A_TIME]
            with visible_errors("enqueue_once", stream=self.stream, group=self._group):
                ids += enqueue_once(
                    self.client,
                    stream=self.stream,
                    added=added,
                    window_ms=window_ms,
                    first=first,
                    payloads=some,
                )
        return ids

    def _traced(
        self, payloads: list[Payload], enqueue: Callable[[Sequence[Payload]], list[str]]
    ) -> list[str]:
        traces = active_traces()
        if traces is None:
            return enqueue(payloads)
        if traces.payload_field is None:
            with traces.sending_call(self._where, len(payloads)):
                return enqueue(payloads)
        with traces.sending_many(self._where, len(payloads)) as sending:
            pairs = zip(payloads, sending.headers, strict=True)
            ids = enqueue([traces.with_context(payload, headers) for payload, headers in pairs])
            sending.sent(ids)
        return ids
