"""Quarantine: where a message goes that fails delivery after delivery, with all that is known of it."""

from __future__ import annotations

import json
import time
from importlib.resources import files
from typing import Any

from conquiet.errors import MalformedEntry
from conquiet.payload import encode_payload
from conquiet.queue import QueueMessage, RedisStreamsQueue
from conquiet.queue.connection import key_beside, visible_errors
from conquiet.queue.lua import LuaScript

_SCRIPT = LuaScript(files("conquiet.consume.scripts").joinpath("quarantine.lua").read_bytes())


def quarantine_stream(stream: str) -> str:
    """The default quarantine of a stream, in the same slot of a Redis Cluster."""
    return key_beside(stream, "quarantine")


def quarantine(
    queue: RedisStreamsQueue, entry: QueueMessage | MalformedEntry, *, reason: str, to: str | None = None
) -> str | None:
    """Move one pending entry to the quarantine stream and ack it, all or nothing.

    Returns the id it has there, or `None` if this consumer no longer holds it.
    """
    config = queue.config
    target = quarantine_stream(config.stream_key) if to is None else to
    arguments: list[Any] = [
        *(config.consumer_group.encode(), config.consumer_name.encode(), entry.id, entry.delivery_count),
        encode_payload(_described(queue, entry, reason)),
    ]
    with visible_errors("quarantine", stream=config.stream_key, group=config.consumer_group):
        added: bytes | None = _SCRIPT.run(queue.client, [config.stream_key, target], arguments)
    return None if added is None else added.decode()


def _described(queue: RedisStreamsQueue, entry: QueueMessage | MalformedEntry, reason: str) -> dict[str, Any]:
    described = {
        "stream": queue.config.stream_key,
        "group": queue.config.consumer_group,
        "consumer": queue.config.consumer_name,
        "id": entry.id,
        "deliveryCount": entry.delivery_count,
        "reason": reason,
        "quarantinedAtMs": time.time_ns() // 1_000_000,
    }
    if isinstance(entry, QueueMessage):
        return described | _payload_field(entry)
    return described | {"fieldsBase64": entry.fields_base64()}


def _payload_field(msg: QueueMessage) -> dict[str, Any]:
    try:
        encode_payload(msg.payload)
    except ValueError:
        # A handler may have put in what UTF-8 cannot carry; as JSON text it is kept all the same.
        return {"payloadJson": json.dumps(msg.payload)}
    return {"payload": msg.payload}
