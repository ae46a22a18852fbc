"""deliver and deliver_batch: a handler is given messages as a drain gives them, without a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from conquiet.consume.batch_handling import new_handling
from conquiet.consume.channel import Message
from conquiet.consume.handling import Handler
from conquiet.consume.outcome import Outcome
from conquiet.db import Inbox
from conquiet.mq.envelope import Envelope, MqMessage, new_id
from conquiet.payload import Payload, decode_payload, encode_payload
from conquiet.queue import QueueMessage

_numbers = itertools.count(1)


def deliver(
    handler: Handler,
    payload: Payload,
    engine: Engine | None = None,
    *,
    inbox: Inbox | bool | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    topic: str | None = None,
    attempt: int = 1,
) -> Outcome:
    """Give one message to a handler in a transaction of its own, and return what became of it.

    The payload goes through JSON, as it would in Redis. Each call is another message: an inbox skips none.

    Args:
        engine: the handler's database; without one it is called as `handler(msg)`.
        topic: a message of this topic, which has a key and headers; it is one also if those are given.

    Returns:
        `Ack()`, or the `Retry` or `DeadLetter` that the handler returned; those have rolled back.

    Raises:
        Exception: what the handler or the commit raised, after the rollback.
    """
    msg = _message(payload, key=key, headers=headers, topic=topic, attempt=attempt)
    with new_handling(handler, engine, inbox) as handling:
        return handling.handle(msg)


def deliver_batch(
    handler: Handler, payloads: Iterable[Payload], engine: Engine | None = None, *, topic: str | None = None
) -> Sequence[Outcome]:
    """Give messages to a `@batch_handler` in one transaction, and return what became of each.

    Raises:
        TypeError: the handler takes one message.
        Exception: what the handler or the commit raised, after the rollback.
    """
    messages = [_message(payload, topic=topic) for payload in payloads]
    with new_handling(handler, engine) as handling:
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
