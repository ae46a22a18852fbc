"""The Lua scripts of drains, each behind one typed function."""

from __future__ import annotations

from importlib.resources import files

from conquiet.queue.config import QueueConfig
from conquiet.queue.connection import Client
from conquiet.queue.lua import LuaScript

_DEAD_LETTER = LuaScript(files(__name__).joinpath("dead_letter.lua").read_bytes())


def dead_letter(
    client: Client, config: QueueConfig, to: str, *, entry_id: str, delivery_count: int, letter: str
) -> str | None:
    """Move one pending entry to the dead letters; its id there, `None` if it was no longer the consumer's."""
    names = (config.consumer_group.encode(), config.consumer_name.encode())
    arguments = (*names, entry_id, delivery_count, letter)
    added: bytes | None = _DEAD_LETTER.run(client, [config.stream_key, to], arguments)
    return None if added is None else added.decode()
