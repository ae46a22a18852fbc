"""Producer: sends messages to the partitions of topics."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from conquiet.arguments import check_name, check_non_negative_int, check_positive_int
from conquiet.errors import TopicError
from conquiet.mq.envelope import MAX_RETRIES, Envelope
from conquiet.mq.metrics import count_produced
from conquiet.mq.scripts import Added, OnceEntry, delay, send_all_once, send_once
from conquiet.mq.send.partitioners import HashPartitioner, Partitioner
from conquiet.mq.topics import Topic, Topics, name_of
from conquiet.payload import Payload
from conquiet.queue.connection import Client, add_entries, queue_error
from conquiet.queue.replicas import ReplicaWait
from conquiet.tracing import Where, active_traces

#: How long a topic is not looked up again: meanwhile two producers may place one key differently.
_KNOWN_FOR_S = 1.0

#: Messages with dedupe ids that one script adds: the server does nothing else meanwhile.
_MOST_IN_A_SCRIPT = 1_000


# Not frozen, as one is made for every message sent: that would double what it costs.
@dataclass(slots=True, kw_only=True)
class Message:
    """One message to send."""

    payload: Payload
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: int | None = None
    #: How often it is tried again at most, up to 1,000, whatever the consumers' policy says; `None` leaves it
    #: to them.
    max_retries: int | None = None
    #: Within the producer's window a second message with this id is not added to the partition.
    dedupe_id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.payload, dict):
            raise TypeError(
                f"payload must be a dict, not {type(self.payload).__name__}: {self.payload!r:.100}"
            )
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be a str or None, got {self.key!r}")
        if self.dedupe_id is not None:
            check_name("dedupe_id", self.dedupe_id)
        if self.max_retries is not None:
            check_non_negative_int("max_retries", self.max_retries)
            if self.max_retries > MAX_RETRIES:
                raise ValueError(f"max_retries must be at most {MAX_RETRIES}, got {self.max_retries!r}")
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"headers must be strings, got {name!r}: {value!r:.100}")


class Producer:
    """Sends to topics and plain streams; sees within a second that a topic grew or was created again.

    Raises:
        TopicError: of every method that sends, if the name is neither a topic nor a stream that is there.
    """

    def __init__(
        self,
        client: Client,
        *,
        partitioner: Partitioner | None = None,
        dedupe_window_ms: int = 24 * 3_600_000,
        create_streams: bool = False,
        min_replicas: int = 0,
        replica_timeout_ms: int = 1_000,
    ) -> None:
        """Send with this client.

        Args:
            create_streams: what is sent to a name that is not there goes to a new plain stream.
            min_replicas: `send`, and each batch of `send_many`, waits until so many replicas have it.
            replica_timeout_ms: for so long; then it raises a `NotReplicatedError`.
        """
        self._replicas = ReplicaWait(min_replicas, replica_timeout_ms)
        check_positive_int("dedupe_window_ms", dedupe_window_ms)
        self._topics = Topics(client)
        self._partitioner = partitioner or HashPartitioner()
        self._dedupe_window_ms = dedupe_window_ms
        self._create_streams = create_streams
        #: Topics, and the monotonic time until which they are not looked up again.
        self._known: dict[str, tuple[Topic, float]] = {}

    def send(
        self,
        topic: Topic | str,
        payload: Payload,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay_ms: int = 0,
        partition: int | None = None,
        *,
        dedupe_id: str | None = None,
        max_retries: int | None = None,
    ) -> str:
        """Send one message and return its entry id; of a delayed one, the name under which it waits.

        Args:
            key: messages with the same key go to the same partition and keep their order there.
            delay_ms: added to its partition after this time, by any consumer of the topic.
            dedupe_id: within the window a second message with this id is not added; the first one's id is
                returned. It is known in its partition, so give the same key; after the topic grew, a key may
                be in another partition, which on a cluster does not know the id.
            max_retries: tried again at most so often, up to 1,000, whatever the consumers' policy says.
        """
        check_non_negative_int("delay_ms", delay_ms)
        if delay_ms and dedupe_id is not None:
            raise ValueError(f"dedupe_id must not be given with a delay, got {dedupe_id!r}")
        message = Message(
            payload=payload,
            key=key,
            headers=headers or {},
            partition=partition,
            max_retries=max_retries,
            dedupe_id=dedupe_id,
        )
        name, traces = name_of(topic), active_traces()
        if traces is None:
            return self._send(name, message, delay_ms)
        with traces.sending(Where(destination=name)) as sending:
            entry_id = self._send(name, _with_headers(message, sending.headers[0]), delay_ms)
            if not delay_ms:
                sending.sent([entry_id])
        return entry_id

    def send_many(
        self, topic: Topic | str, messages: Iterable[Message | Payload], *, batch_size: int = 1_000
    ) -> list[str]:
        """Send messages, `batch_size` to a round trip, and return their entry ids in the same order.

        If one message is refused, none is sent. Messages of one partition are added in the order given. One
        whose dedupe id was added before is not added again: the first one's id is returned in its place.
        """
        check_positive_int("batch_size", batch_size)
        given = [item if isinstance(item, Message) else Message(payload=item) for item in messages]
        name, traces = name_of(topic), active_traces()
        if traces is None:
            return self._send_many(name, given, batch_size)
        with traces.sending_many(Where(destination=name), len(given)) as sending:
            traced = [_with_headers(*pair) for pair in zip(given, sending.headers, strict=True)]
            ids = self._send_many(name, traced, batch_size)
            sending.sent(ids)
        return ids

    def refresh(self) -> None:
        """Look up every topic again with its next message, as right after `Topics.grow`."""
        self._known.clear()

    def _send(self, name: str, message: Message, delay_ms: int) -> str:
        topic = self._open(name)
        envelope = self._envelope(topic, message)
        entry = OnceEntry(envelope.partition, message.dedupe_id, envelope.encode())
        window_ms = self._dedupe_window_ms
        added = _add(topic, entry, delay_ms, window_ms)
        if added is None:
            added = _add(self._restore(topic), entry, delay_ms, window_ms)
        if added is None:
            raise _deleted(name, 0, 1)
        if added.is_new:
            count_produced(name, entry.partition, 1)
        self._replicas.after(topic.client, [topic.keys.stream(entry.partition)], [added.entry_id])
        return added.entry_id

    def _restore(self, topic: Topic, added: int = 0, of: int = 1) -> Topic:
        # The stream is not there: the topic was deleted since it was looked up, or lacks streams.
        self._known.pop(topic.name, None)
        try:
            return self._topics.restore(topic)
        except TopicError as error:
            raise _deleted(topic.name, added, of) from error

    def _send_many(self, name: str, messages: list[Message], batch_size: int) -> list[str]:
        # After the messages are there: they may come slowly, and the topic grow meanwhile.
        topic = self._open(name)
        entries, is_once = [], False
        for message in messages:
            envelope = self._envelope(topic, message)
            entries.append(OnceEntry(envelope.partition, message.dedupe_id, envelope.encode()))
            is_once = is_once or message.dedupe_id is not None
        if is_once:
            batch_size = min(batch_size, _MOST_IN_A_SCRIPT)
        ids: list[str] = []
        for start in range(0, len(entries), batch_size):
            batch = entries[start : start + batch_size]
            replies = _add_all(topic, batch, self._dedupe_window_ms, is_once=is_once)
            ids += [reply for reply in replies if isinstance(reply, str)]
            if None in replies:
                topic = self._restore(topic, len(ids), len(entries))
                left = [number for number, reply in enumerate(replies) if reply is None]
                some = [batch[number] for number in left]
                again = _add_all(topic, some, self._dedupe_window_ms, is_once=is_once)
                for number, reply in zip(left, again, strict=True):
                    replies[number] = reply
                ids = ids[:start] + [reply for reply in replies if isinstance(reply, str)]
            for reply in replies:
                if isinstance(reply, Exception):
                    operation = f"send_many ({len(ids)} of {len(entries)} messages are there)"
                    raise queue_error(operation, reply, stream=name, group=None) from reply
                if reply is None:
                    raise _deleted(name, len(ids), len(entries))
            self._replicas.after(topic.client, map(topic.keys.stream, topic.partitions), ids)
        return ids

    def _open(self, name: str) -> Topic:
        now = time.monotonic()
        known = self._known.get(name)
        if known is not None and now < known[1]:
            return known[0]
        topic = self._topics.open(name) if self._create_streams else self._topics.open_existing(name)
        # A plain stream is always looked up: the topic that is created under its name has other readers.
        if topic.layout != "bare_stream":
            self._known[name] = topic, now + _KNOWN_FOR_S
        return topic

    def _envelope(self, topic: Topic, message: Message) -> Envelope:
        partition = message.partition
        if partition is None:
            partition = self._partitioner.partition_for(message.key, topic.partition_count)
        # True and 1.0 are in a range too, but the streams of their names would have no reader.
        if type(partition) is not int:
            raise TypeError(f"partition must be an int, got {partition!r}")
        if partition not in topic.partitions:
            raise TopicError(
                topic.name, f"has no partition {partition}, only 0 to {topic.partition_count - 1}"
            )
        return Envelope(
            topic=topic.name,
            partition=partition,
            key=message.key,
            headers=message.headers,
            max_retries=message.max_retries,
            payload=message.payload,
        )


def _add(topic: Topic, entry: OnceEntry, delay_ms: int, window_ms: int) -> Added | None:
    if delay_ms:
        waiting = f"send:{uuid.uuid4().hex}"
        is_kept = delay(topic, entry.partition, waiting, entry.data, delay_ms)
        return Added(waiting, True) if is_kept else None
    if entry.dedupe_id is not None:
        return send_once(topic, entry, window_ms)
    stream = topic.keys.stream(entry.partition)
    reply: bytes | None = topic.call("XADD", stream, *_options(topic), "*", "data", entry.data)
    return None if reply is None else Added(reply.decode(), True)


def _add_all(
    topic: Topic, batch: Sequence[OnceEntry], window_ms: int, *, is_once: bool
) -> list[str | Exception | None]:
    replies: list[str | Exception | None]
    if is_once:
        added = send_all_once(topic, batch, window_ms)
        replies = [one.entry_id if isinstance(one, Added) else one for one in added]
        is_new = [isinstance(one, Added) and one.is_new for one in added]
    else:
        streams = {number: topic.keys.stream(number).encode() for number in topic.partitions}
        with topic.visible("XADD"):
            replies = add_entries(
                topic.client,
                [(streams[entry.partition], entry.data) for entry in batch],
                *_options(topic),
            )
        is_new = [isinstance(reply, str) for reply in replies]
    new = Counter(entry.partition for entry, counts in zip(batch, is_new, strict=True) if counts)
    for partition, number in new.items():
        count_produced(topic.name, partition, number)
    return replies


def _options(topic: Topic) -> tuple[str, ...]:
    # Not to a topic that was deleted since it was looked up; a plain stream may be new.
    return () if topic.layout == "bare_stream" else ("NOMKSTREAM",)


def _deleted(name: str, added: int, of: int) -> TopicError:
    return TopicError(name, f"was deleted: {added} of {of} messages were added to it before")


def _with_headers(message: Message, headers: Mapping[str, str]) -> Message:
    # Also over headers that a handler passes on: the trace goes on from here.
    return replace(message, headers={**message.headers, **headers})
