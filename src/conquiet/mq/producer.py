"""Producer: sends messages to the partitions of topics."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from conquiet.arguments import check_name, check_non_negative_int, check_positive_int
from conquiet.errors import TopicError
from conquiet.mq.envelope import Envelope
from conquiet.mq.metrics import count_produced
from conquiet.mq.partitioners import HashPartitioner, Partitioner
from conquiet.mq.topics import Topic, Topics
from conquiet.payload import Payload
from conquiet.queue.connection import Client, add_entries, queue_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message to send."""

    payload: Payload
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: int | None = None


class Producer:
    """Sends to topics by name; looks each one up once, so after a topic grew call `refresh()`."""

    def __init__(
        self,
        client: Client,
        *,
        partitioner: Partitioner | None = None,
        dedupe_window_ms: int = 24 * 3_600_000,
    ) -> None:
        check_positive_int("dedupe_window_ms", dedupe_window_ms)
        self._topics = Topics(client)
        self._client = client
        self._partitioner = partitioner or HashPartitioner()
        self._dedupe_window_ms = dedupe_window_ms
        self._known: dict[str, Topic] = {}

    def send(
        self,
        topic: str,
        payload: Payload,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay_ms: int = 0,
        partition: int | None = None,
        *,
        dedupe_id: str | None = None,
    ) -> str:
        """Send one message and return its entry id; of a delayed one, the name under which it waits.

        Args:
            key: messages with the same key go to the same partition and keep their order there.
            delay_ms: added to its partition after this time, by any consumer of the topic.
            dedupe_id: within the window a second message with this id is not added; the first one's id is
                returned. It is looked for in the message's own partition, so give the same key.
        """
        check_non_negative_int("delay_ms", delay_ms)
        opened = self._topic(topic)
        envelope = self._envelope(
            opened, Message(payload=payload, key=key, headers=headers or {}, partition=partition)
        )
        if delay_ms:
            if dedupe_id is not None:
                raise ValueError(f"dedupe_id must not be given with a delay, got {dedupe_id!r}")
            return self._delay(opened, envelope, delay_ms)
        stream = opened.keys.stream(envelope.partition)
        if dedupe_id is None:
            entry_id: bytes = opened.call("XADD", stream, "*", "data", envelope.encode())
            is_new = True
        else:
            check_name("dedupe_id", dedupe_id)
            place = (opened.keys.deduped(envelope.partition), opened.keys.deduped_until(envelope.partition))
            arguments = (envelope.encode(), dedupe_id, self._dedupe_window_ms, "")
            entry_id, is_new = opened.run("send_once", [stream, *place], *arguments)
        if is_new:
            count_produced(topic, envelope.partition, 1)
        return entry_id.decode()

    def send_many(
        self, topic: str, messages: Iterable[Message | Payload], *, batch_size: int = 1_000
    ) -> list[str]:
        """Send messages, `batch_size` to a round trip, and return their entry ids in the same order.

        If one message is refused, none is sent. Messages of one partition are added in the order given.
        """
        check_positive_int("batch_size", batch_size)
        opened = self._topic(topic)
        streams = [opened.keys.stream(partition).encode() for partition in opened.partitions]
        envelopes = [
            self._envelope(opened, message if isinstance(message, Message) else Message(payload=message))
            for message in messages
        ]
        entries = [(streams[envelope.partition], envelope.encode()) for envelope in envelopes]
        ids: list[str] = []
        for start in range(0, len(entries), batch_size):
            with opened.visible("XADD"):
                replies = add_entries(self._client, entries[start : start + batch_size])
            ids += [reply for reply in replies if isinstance(reply, str)]
            for reply in replies:
                if isinstance(reply, Exception):
                    operation = f"XADD of {len(entries)} messages, {len(ids)} were added,"
                    raise queue_error(operation, reply, stream=topic, group=None) from reply
        for partition, number in Counter(envelope.partition for envelope in envelopes).items():
            count_produced(topic, partition, number)
        return ids

    def refresh(self) -> None:
        """Forget how many partitions topics have, so that the next message looks again."""
        self._known.clear()

    def _topic(self, name: str) -> Topic:
        if name not in self._known:
            self._known[name] = self._topics.open(name)
        return self._known[name]

    def _envelope(self, topic: Topic, message: Message) -> Envelope:
        _check_parts(message)
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
            payload=message.payload,
        )

    def _delay(self, topic: Topic, envelope: Envelope, delay_ms: int) -> str:
        name = f"send:{uuid.uuid4().hex}"
        keys = [topic.keys.delayed(envelope.partition), topic.keys.delayed_items(envelope.partition)]
        item = f"{envelope.partition}:".encode() + envelope.encode()
        topic.run("delay", keys, "", delay_ms, name, item)
        count_produced(topic.name, envelope.partition, 1)
        return name


def _check_parts(message: Message) -> None:
    if not isinstance(message.payload, dict):
        raise TypeError(
            f"payload must be a dict, not {type(message.payload).__name__}: {message.payload!r:.100}"
        )
    if message.key is not None and not isinstance(message.key, str):
        raise TypeError(f"key must be a str or None, got {message.key!r}")
    for name, value in message.headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers must be strings, got {name!r}: {value!r:.100}")
