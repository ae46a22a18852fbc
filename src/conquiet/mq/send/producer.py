"""Producer: sends messages to the partitions of topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from conquiet.arguments import check_non_negative_int, check_positive_int
from conquiet.mq.envelope import Envelope
from conquiet.mq.metrics import count_produced
from conquiet.mq.scripts import OnceEntry, delay, send_all_once, send_once
from conquiet.mq.send.known_topics import KnownTopics, deleted
from conquiet.mq.send.message import Message
from conquiet.mq.send.partitioners import HashPartitioner, Partitioner
from conquiet.mq.topics import Topic, name_of
from conquiet.payload import PayloadCodec, Sendable, check_codec
from conquiet.queue.connection import Client, queue_error
from conquiet.queue.ends import EndWatch
from conquiet.queue.replicas import ReplicaWait
from conquiet.queue.round_trip import add_entries
from conquiet.queue.scripts import Added
from conquiet.tracing import Where, active_traces

#: Messages with dedupe ids that one script adds: the server does nothing else meanwhile.
_MOST_IN_A_SCRIPT = 1_000


class Producer:
    """Sends to topics and plain streams; sees within a second that a topic grew or was created again.

    Raises:
        TopicError: of every method that sends, if the name is neither a topic nor a stream that is there.

    Examples:
        >>> producer = Producer(client)
        >>> entry_id = producer.send("shipments", {"order_id": 7}, key="ann")  # one key, one order
        >>> later = producer.send("shipments", {"order_id": 8}, key="ann", delay_ms=60_000)
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
        fsync: bool = False,
        codec: PayloadCodec | None = None,
    ) -> None:
        """Send with this client.

        Args:
            create_streams: what is sent to a name that is not there goes to a new plain stream.
            min_replicas: `send`, and each batch of `send_many`, waits until so many replicas have it.
            replica_timeout_ms: for so long; then it raises a `NotReplicatedError`.
            fsync: what was sent is on disk, too, at the primary and these replicas; see `StreamWriter`.
            codec: makes the JSON object of every payload, dicts too.
        """
        self._replicas = ReplicaWait(min_replicas, replica_timeout_ms, fsync)
        check_positive_int("dedupe_window_ms", dedupe_window_ms)
        self._topics = KnownTopics(client, create_streams=create_streams)
        self._ends = EndWatch(client)
        self._partitioner = partitioner or HashPartitioner()
        self._dedupe_window_ms = dedupe_window_ms
        check_codec(codec)
        self._codec = codec

    def send(
        self,
        topic: Topic | str,
        payload: Sendable,
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
            entry_id = self._send(name, message.with_headers(sending.headers[0]), delay_ms)
            if not delay_ms:
                sending.sent([entry_id])
        return entry_id

    def send_many(
        self, topic: Topic | str, messages: Iterable[Message | Sendable], *, batch_size: int = 1_000
    ) -> list[str]:
        """Send messages, `batch_size` to a round trip, and return their entry ids in the same order.

        If one message is refused, none is sent. Messages of one partition are added in the order given. One
        whose dedupe id was added before is not added again: the first one's id is returned in its place.
        """
        return [added.entry_id for added in self.send_each(topic, messages, batch_size=batch_size)]

    def send_each(
        self, topic: Topic | str, messages: Iterable[Message | Sendable], *, batch_size: int = 1_000
    ) -> list[Added]:
        """As `send_many`; returns for each message whether it is new or was added before."""
        check_positive_int("batch_size", batch_size)
        given = [item if isinstance(item, Message) else Message(payload=item) for item in messages]
        name, traces = name_of(topic), active_traces()
        if traces is None:
            return self._send_many(name, given, batch_size)
        with traces.sending_many(Where(destination=name), len(given)) as sending:
            traced = [
                message.with_headers(headers) for message, headers in zip(given, sending.headers, strict=True)
            ]
            added = self._send_many(name, traced, batch_size)
            sending.sent([one.entry_id for one in added])
        return added

    def refresh(self) -> None:
        """Look up every topic again with its next message, as right after `Topics.grow`."""
        self._topics.forget()

    def _send(self, name: str, message: Message, delay_ms: int) -> str:
        topic = self._topics.open(name)
        envelope = _envelope(self._partitioner, topic, message, self._codec)
        entry = OnceEntry(envelope.partition, message.dedupe_id, envelope.encode())
        window_ms, stream = self._dedupe_window_ms, topic.keys.stream(entry.partition)
        self._ends.check_before_send(stream)
        primaries = self._replicas.before(topic.client, [stream])
        added = _add(topic, entry, delay_ms, window_ms)
        if added is None:
            added = _add(self._topics.restore(topic), entry, delay_ms, window_ms)
        if added is None:
            raise deleted(name, 0, 1)
        if added.is_new:
            count_produced(name, entry.partition, 1)
            if not delay_ms:
                self._note_sent(topic, entry.partition, [added.entry_id], entry.data)
        self._replicas.after(topic.client, [stream], [added.entry_id], primaries)
        return added.entry_id

    def _send_many(self, name: str, messages: list[Message], batch_size: int) -> list[Added]:
        # After the messages are there: they may come slowly, and the topic grow meanwhile.
        topic = self._topics.open(name)
        entries, is_once = [], False
        for message in messages:
            envelope = _envelope(self._partitioner, topic, message, self._codec)
            entries.append(OnceEntry(envelope.partition, message.dedupe_id, envelope.encode()))
            is_once = is_once or message.dedupe_id is not None
        if is_once:
            batch_size = min(batch_size, _MOST_IN_A_SCRIPT)
        done: list[Added] = []
        streams = [*map(topic.keys.stream, topic.partitions)]
        primaries = self._replicas.before(topic.client, streams)
        for start in range(0, len(entries), batch_size):
            batch = entries[start : start + batch_size]
            replies = self._add_all(topic, batch, is_once=is_once)
            done += [reply for reply in replies if isinstance(reply, Added)]
            if None in replies:
                topic = self._topics.restore(topic, len(done), len(entries))
                left = [number for number, reply in enumerate(replies) if reply is None]
                some = [batch[number] for number in left]
                again = self._add_all(topic, some, is_once=is_once)
                for number, reply in zip(left, again, strict=True):
                    replies[number] = reply
                done = done[:start] + [reply for reply in replies if isinstance(reply, Added)]
            for reply in replies:
                if isinstance(reply, Exception):
                    operation = f"send_many ({len(done)} of {len(entries)} messages are there)"
                    raise queue_error(operation, reply, stream=name, group=None) from reply
                if reply is None:
                    raise deleted(name, len(done), len(entries))
            ids = [one.entry_id for one in done]
            self._replicas.after(topic.client, streams, ids, primaries)
        return done

    def _add_all(
        self, topic: Topic, batch: Sequence[OnceEntry], *, is_once: bool
    ) -> list[Added | Exception | None]:
        streams = {number: topic.keys.stream(number) for number in {entry.partition for entry in batch}}
        self._ends.check_before_send(*streams.values())
        new: dict[int, list[str]] = {number: [] for number in streams}
        last: dict[int, bytes] = {}
        replies: list[Added | Exception | None]
        if is_once:
            replies = send_all_once(topic, batch, self._dedupe_window_ms)
        else:
            keys = {number: stream.encode() for number, stream in streams.items()}
            entries = [(keys[entry.partition], entry.data) for entry in batch]
            with topic.visible("XADD"):
                found = add_entries(topic.client, entries, *_options(topic))
            replies = [Added(reply, True) if isinstance(reply, str) else reply for reply in found]
        for entry, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Added) and reply.is_new:
                new[entry.partition].append(reply.entry_id)
                last[entry.partition] = entry.data
        for number, data in last.items():
            count_produced(topic.name, number, len(new[number]))
            self._note_sent(topic, number, new[number], data)
        return replies

    def _note_sent(self, topic: Topic, partition: int, ids: list[str], data: bytes) -> None:
        stream = topic.keys.stream(partition)
        if stream not in self._ends:
            self._ends.watch(stream, topic.end_mark(partition))
        self._ends.sent(stream, ids, data)


def _envelope(
    partitioner: Partitioner, topic: Topic, message: Message, codec: PayloadCodec | None = None
) -> Envelope:
    partition = message.partition
    if partition is None:
        partition = partitioner.partition_for(message.key, topic.partition_count)
    # True and 1.0 are in a range too, but the streams of their names would have no reader.
    if type(partition) is not int:
        raise TypeError(f"partition must be an int, got {partition!r}")
    topic.check_partition(partition)
    return Envelope(
        topic=topic.name,
        partition=partition,
        key=message.key,
        headers=message.headers,
        max_retries=message.max_retries,
        payload=message.json_object(codec),
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


def _options(topic: Topic) -> tuple[str, ...]:
    # Not to a topic that was deleted since it was looked up; a plain stream may be new.
    return () if topic.layout == "bare_stream" else ("NOMKSTREAM",)
