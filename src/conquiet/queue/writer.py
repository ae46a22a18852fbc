"""StreamWriter: adds messages to one stream, without a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from conquiet.arguments import check_name, check_positive_int
from conquiet.payload import (
    Payload,
    PayloadCodec,
    Sendable,
    as_json_object,
    as_json_objects,
    check_codec,
    encode_payload,
)
from conquiet.queue.connection import (
    Client,
    check_client,
    key_beside,
    queue_error,
    visible_errors,
)
from conquiet.queue.ends import EndWatch
from conquiet.queue.message import is_entry_id
from conquiet.queue.replicas import ReplicaWait
from conquiet.queue.round_trip import add_entries, execute_unparsed
from conquiet.queue.scripts import Added, enqueue_once
from conquiet.tracing import Where, active_traces

#: Payloads that one script adds: the server does nothing else meanwhile.
_ONCE_AT_A_TIME = 500


class StreamWriter:
    """Adds messages to one stream; every Redis failure is raised as `QueueError`.

    For a process that only sends: a group without consumers would keep every entry from being trimmed.

    Examples:
        >>> ids = StreamWriter(client, "receipts").enqueue_many({"order_id": n} for n in range(3))
        >>> len(ids)
        3
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        *,
        group: str | None = None,
        min_replicas: int = 0,
        replica_timeout_ms: int = 1_000,
        fsync: bool = False,
        codec: PayloadCodec | None = None,
    ) -> None:
        """Write to the stream.

        Args:
            group: for error messages only.
            min_replicas: every call waits until so many replicas have what it added.
            replica_timeout_ms: for so long; then it raises a `NotReplicatedError`.
            fsync: what was added is on disk, too, at the primary and these replicas (`WAITAOF`); refused
                before Redis 7.2, and with `appendonly no`.
            codec: makes the JSON object of every payload, dicts too.
        """
        check_client(client)
        check_name("stream", stream)
        check_codec(codec)
        self._replicas = ReplicaWait(min_replicas, replica_timeout_ms, fsync)
        self.client = client
        self.stream = stream
        #: Reports what a failover has lost of what was added here.
        self.ends = EndWatch(client)
        self._key = stream.encode()
        self._where = Where(destination=stream)
        self._group = group
        self._codec = codec

    def enqueue(self, payload: Sendable) -> str:
        """Add one message and return its entry id."""
        written = as_json_object(payload, self._codec)
        traces = active_traces()
        if traces is None:
            return self._enqueue(written)
        with traces.sending(self._where) as sending:
            entry_id = self._enqueue(traces.with_context(written, sending.headers[0]))
            sending.sent([entry_id])
        return entry_id

    def _enqueue(self, payload: Payload) -> str:
        data = encode_payload(payload)
        self.ends.check_before_send(self.stream)
        primaries = self._replicas.before(self.client, [self.stream])
        with visible_errors("XADD", stream=self.stream, group=self._group):
            reply: bytes = execute_unparsed(self.client, "XADD", self._key, "*", "data", data)
        entry_id = reply.decode()
        self.ends.sent(self.stream, [entry_id], data)
        self._replicas.after(self.client, [self.stream], [entry_id], primaries)
        return entry_id

    def enqueue_many(self, payloads: Iterable[Sendable], *, batch_size: int = 1_000) -> list[str]:
        """Add messages in order, `batch_size` to a round trip; if one payload is refused, none is added."""
        check_positive_int("batch_size", batch_size)
        ids: list[str] = []
        with self._sending(payloads) as (carrying, record_ids):
            encoded = [(self._key, encode_payload(payload)) for payload in carrying]
            primaries = self._replicas.before(self.client, [self.stream])
            for start in range(0, len(encoded), batch_size):
                batch = encoded[start : start + batch_size]
                self.ends.check_before_send(self.stream)
                with visible_errors("XADD", stream=self.stream, group=self._group):
                    replies = add_entries(self.client, batch)
                added = [reply for reply in replies if isinstance(reply, str)]
                self.ends.sent(self.stream, added, batch[-1][1] if replies[-1:] == added[-1:] else None)
                ids += added
                for reply in replies:
                    if isinstance(reply, Exception):
                        operation = f"XADD of {len(encoded)} messages, {len(ids)} were added,"
                        raise queue_error(operation, reply, stream=self.stream, group=self._group) from reply
                self._replicas.after(self.client, [self.stream], ids, primaries)
            record_ids(ids)
        return ids

    def enqueue_once(
        self, payloads: Iterable[Sendable], *, dedupe_id: str, window_ms: int = 24 * 3_600_000
    ) -> list[str]:
        """Add messages in order, each once: a second call with this id returns the first one's entry ids.

        What a call that died in the middle had not added, the next one adds. Payloads are identified by their
        index in the list, not by their content.

        Args:
            window_ms: how long after the last call the id is remembered.
        """
        listed = list(payloads)
        names = [str(number) for number in range(len(listed))]
        added = self.enqueue_named(listed, names, dedupe_id=dedupe_id, window_ms=window_ms)
        return [one.entry_id for one in added]

    def enqueue_named(
        self,
        payloads: Sequence[Sendable],
        names: Sequence[str],
        *,
        dedupe_id: str,
        window_ms: int = 24 * 3_600_000,
    ) -> list[Added]:
        """As `enqueue_once`, with payloads identified by their names; returns for each whether it is new."""
        check_name("dedupe_id", dedupe_id)
        check_positive_int("window_ms", window_ms)
        key = key_beside(self.stream, f"once:{dedupe_id}")
        added: list[Added] = []
        with self._sending(payloads) as (carrying, record_ids):
            encoded = list(zip(names, map(encode_payload, carrying), strict=True))
            primaries = self._replicas.before(self.client, [self.stream])
            for first in range(0, len(encoded), _ONCE_AT_A_TIME):
                some = encoded[first : first + _ONCE_AT_A_TIME]
                self.ends.check_before_send(self.stream)
                with visible_errors("enqueue_once", stream=self.stream, group=self._group):
                    added += enqueue_once(
                        self.client, stream=self.stream, added=key, window_ms=window_ms, payloads=some
                    )
                ids = [one.entry_id for one in added]
                self.ends.sent(self.stream, [*filter(is_entry_id, ids[first:])])
                self._replicas.after(self.client, [self.stream], ids, primaries)
            record_ids([one.entry_id for one in added])
        return added

    @contextmanager
    def _sending(
        self, given: Iterable[Sendable]
    ) -> Iterator[tuple[list[Payload], Callable[[Sequence[str]], None]]]:
        """The payloads with the contexts that they carry, and what records their entry ids, in a span."""
        payloads = as_json_objects(given, self._codec)
        traces = active_traces()
        if traces is None:
            yield payloads, lambda _ids: None
        elif traces.payload_field is None:
            with traces.sending_call(self._where, len(payloads)):
                yield payloads, lambda _ids: None
        else:
            with traces.sending_many(self._where, len(payloads)) as sending:
                pairs = zip(payloads, sending.headers, strict=True)
                yield [traces.with_context(payload, headers) for payload, headers in pairs], sending.sent
