"""deliver and deliver_batch: a handler is given messages as a drain gives them, without a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from conquiet.consume.handler_kinds import PayloadType, new_handling
from conquiet.consume.handling import Handler
from conquiet.consume.outcome import Outcome
from conquiet.db import Inbox
from conquiet.mq.envelope import Envelope, MqMessage
from conquiet.mq.keys import TopicKeys
from conquiet.mq.send.message import Message
from conquiet.payload import PayloadCodec, Sendable, as_json_object, decode_payload, encode_payload
from conquiet.queue import QueueMessage

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_numbers = itertools.count(1)


def deliver(
    handler: Handler,
    payload: Sendable | Message,
    engine: Engine | AsyncEngine | None = None,
    *,
    payload_type: Any = None,
    codec: PayloadCodec | None = None,
    inbox: Inbox | bool | None = None,
    topic: str | None = None,
    attempt: int = 1,
) -> Outcome:
    """Give one message to a handler in a transaction of its own, and return what became of it.

    The payload goes through JSON, as it would in Redis. Each call is another message: an inbox skips none.

    Args:
        payload: or a `Message` of a topic, which has a key and headers.
        engine: the handler's database, an `AsyncEngine` for an `async def` handler; without one it is called
            as `handler(msg)`.
        payload_type: what `msg.payload` is to be, as the argument `payload` of `drain`.
        codec: as that of the queue or the topic.
        topic: a message of this topic instead of one of a plain stream.

    Returns:
        `Ack()`, or the `Retry` or `DeadLetter` that the handler returned; those have rolled back.

    Raises:
        Exception: what the handler or the commit raised, after the rollback.

    Examples:
        >>> deliver(bill, {"order_id": 7}, engine)
        Ack()
    """
    msg = _delivered(payload, codec, topic, attempt)
    kind = None if payload_type is None else PayloadType(payload_type, codec)
    with new_handling(handler, engine, inbox, payload=kind) as handling:
        return handling.handle(msg)


def deliver_batch(
    handler: Handler,
    payloads: Iterable[Sendable | Message],
    engine: Engine | AsyncEngine | None = None,
    *,
    payload_type: Any = None,
    codec: PayloadCodec | None = None,
    topic: str | None = None,
) -> Sequence[Outcome]:
    """Give messages to a `@batch_handler` in one transaction, and return what became of each.

    Raises:
        TypeError: the handler takes one message.
        Exception: what the handler or the commit raised, after the rollback.

    Examples:
        >>> @batch_handler
        ... def load(messages, session):
        ...     for msg in messages:
        ...         bill(msg, session)
        >>> deliver_batch(load, [{"order_id": 7}, {"order_id": 8}], engine)
        [Ack(), Ack()]
    """
    messages = [_delivered(payload, codec, topic) for payload in payloads]
    kind = None if payload_type is None else PayloadType(payload_type, codec)
    with new_handling(handler, engine, payload=kind) as handling:
        return handling.handle_batch(messages)


def _delivered(
    sent: Sendable | Message, codec: PayloadCodec | None, topic: str | None, attempt: int = 1
) -> QueueMessage | MqMessage:
    entry_id = f"{next(_numbers)}-0"
    facts: dict[str, Any] = {"group": "test", "id": entry_id, "delivery_count": attempt}
    if topic is None and not isinstance(sent, Message):
        data = encode_payload(as_json_object(sent, codec))
        return QueueMessage(stream="test", payload=decode_payload(data), data=data, **facts)
    message = sent if isinstance(sent, Message) else Message(payload=sent)
    where: dict[str, Any] = {"topic": topic or "test", "partition": message.partition or 0}
    data = Envelope(
        payload=message.json_object(codec),
        key=message.key,
        headers=message.headers,
        max_retries=message.max_retries,
        **where,
    ).encode()
    read = Envelope.of(decode_payload(data), **where)
    facts |= {"attempt": attempt, "stream": TopicKeys(where["topic"], "single").stream(read.partition)}
    return MqMessage(envelope=read, data=data, sent_id=read.id, sent_ms=read.timestamp_ms, **where, **facts)
