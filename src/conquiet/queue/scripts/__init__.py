"""The Lua scripts of the queue, each behind one typed function."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Literal

from conquiet.queue.config import QueueConfig
from conquiet.queue.connection import Client
from conquiet.queue.message import QueueMessage

_CHANGE_HELD = files(__name__).joinpath("change_held.lua").read_bytes()


def change_held(
    client: Client,
    config: QueueConfig,
    change: Literal["renew", "hand_back"],
    messages: Sequence[QueueMessage],
) -> set[str]:
    """Renew or hand back the messages that the consumer still holds; returns the ids it still held."""
    arguments: list[bytes | str | int] = [
        config.consumer_group.encode(),
        config.consumer_name.encode(),
        change,
    ]
    for message in messages:
        arguments += (message.id, message.delivery_count)
    held = client.register_script(_CHANGE_HELD)(keys=[config.stream_key.encode()], args=arguments)
    return {entry_id.decode() if isinstance(entry_id, bytes) else entry_id for entry_id in held}
