"""deliver and deliver_batch: a handler is given messages as a drain gives them, without a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from conquiet.consume.channel import Message
from conquiet.consume.handler_kinds import PayloadType, new_handling
from conquiet.consume.handling import Handler
from conquiet.consume.outcome import Outcome
from conquiet.db import Inbox
from conquiet.mq.envelope import Envelope, MqMessage, new_id
from conquiet.payload import (
    Payload,
    PayloadCodec,
    Sendable,
    as_json_object,
    decode_payload,
    encode_payload,
)
from conquiet.queue import QueueMessage

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_numbers = itertools.count(1)


def deliver(
    handler: Handler,
    payload: Sendable,
    engine: Engine | AsyncEngine | None = None,
    *,
    payload_type: Any = None,
    codec: PayloadCodec | None = None,
    inbox: Inbox | bool | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    topic: str | None = None,
    attempt: int = 1,
) -> Outcome:
    """Give one message to a handler in a transaction of its own, and return what became of it.

    The payload goes through JSON, as it would in Redis. Each call is another message: an inbox skips none.

    Args:
        engine: the handler's database, an `AsyncEngine` for an `async def` handler; without one it is called
            as `handler(msg)`.
        payload_type: what `msg.payload` is to be, as the argument `payload` of `drain`.
        codec: as that of the queue or the topic.
        topic: a message of this topic, which has a key and headers; it is one also if those are given.

    Returns:
        `Ack()`, or the `Retry` or `DeadLetter` that the handler returned; those have rolled back.

    Raises:
        Exception: what the handler or the commit raised, after the rollback.

    Examples:
        >>> deliver(bill, {"order_id": 7}, engine)
        Ack()
    """
    msg = _message(as_json_object(payload, codec), key=key, headers=headers, topic=topic, attempt=attempt)
    kind = None if payload_type is None else PayloadType(payload_type, codec)
    with new_handling(handler, engine, inbox, payload=kind) as handling:
        return handling.handle(msg)


def deliver_batch(
    handler: Handler,
    payloads: Iterable[Sendable],
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
    messages = [_message(as_json_object(payload, codec), topic=topic) for payload in payloads]
    kind = None if payload_type is None else PayloadType(payload_type, codec)
    with new_handling(handler, engine, payload=kind) as handling:
        return handling.handle_batch(messages)


def _message(
    payload: Payload,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    topic: str | None = None,
    attempt: int = 1,
) -> Message:
    entry_id = f"{next(_numbers)}-0"
    facts: dict[str, Any] = {"group": "test", "id": entry_id, "delivery_count": attempt}
    if topic is None and key is None and headers is None:
        data = encode_payload(payload)
        return QueueMessage(stream="test", payload=decode_payload(data), data=data, **facts)
    topic = topic or "test"
    sent = Envelope(
        topic=topic, partition=0, payload=payload, id=new_id(), key=key, headers=dict(headers or {})
    )
    data = sent.encode()
    read = Envelope.of(decode_payload(data), topic=topic, partition=0)
    stream = f"stream:topic:{topic}:p:0"
    facts |= {"attempt": attempt, "stream": stream, "data": data, "sent_id": read.id}
    return MqMessage(topic=topic, partition=0, envelope=read, sent_ms=read.timestamp_ms, **facts)
