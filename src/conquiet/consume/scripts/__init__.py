"""The Lua scripts of drains, each behind one typed function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from conquiet.consume.report import Elsewhere
from conquiet.queue.config import QueueConfig
from conquiet.queue.connection import Client, as_text, drains_key
from conquiet.queue.lua import LuaScript

_DEAD_LETTER, _JOIN, _LEAVE, _PUBLISH = (
    LuaScript(files(__name__).joinpath(f"{name}.lua").read_bytes())
    for name in ("dead_letter", "join", "leave", "publish")
)


#: The ids of rows in their stream, and those of them that were added now.
Published = tuple[list[str], list[str]]


@dataclass(frozen=True, slots=True)
class Busy:
    """Another drain lives under the consumer's name."""

    instance: str
    process: str
    #: It counts as dead after this time without a heartbeat.
    free_in_ms: int


def dead_letter(
    client: Client, config: QueueConfig, to: str, *, entry_id: str, delivery_count: int, letter: str
) -> str | None:
    """Move one pending entry to the dead letters; its id there, `None` if it was no longer the consumer's."""
    names = (config.consumer_group.encode(), config.consumer_name.encode())
    arguments = (*names, entry_id, delivery_count, letter)
    added: bytes | None = _DEAD_LETTER.run(client, [config.stream_key, to], arguments)
    return None if added is None else added.decode()


def join(
    client: Client, config: QueueConfig, instance: str, process: str, *, ttl_ms: int, replaces: str = ""
) -> list[str] | Busy:
    """Say that this instance lives under the consumer's name; returns the names that are dead."""
    names = (config.consumer_group.encode(), config.consumer_name.encode())
    has_joined, *reply = _JOIN.run(client, _keys(config), (*names, instance, process, ttl_ms, replaces))
    if has_joined:
        return [name.decode(errors="replace") for name in reply[0]]
    other, other_process, free_in_ms = reply
    return Busy(other.decode(), other_process.decode(), free_in_ms)


def leave(client: Client, config: QueueConfig, consumer: str, instance: str = "", left: int = 0) -> Elsewhere:
    """Forget an instance, or one that is dead, and the consumer's name if nothing is pending there."""
    arguments = (config.consumer_group.encode(), consumer.encode(), instance, left)
    return Elsewhere(*_LEAVE.run(client, _keys(config), arguments))


def publish(
    client: Client, rows: Sequence[tuple[str, str, Sequence[tuple[str, bytes]]]], known_for_ms: int
) -> list[Published | Exception]:
    """Add rows that were not added before: for each stream its key, that of what is known, and rows."""
    calls = [
        ((stream, known), (known_for_ms, *(part for row in named for part in row)))
        for stream, known, named in rows
    ]
    published: list[Published | Exception] = []
    for reply in _PUBLISH.run_all(client, calls):
        if isinstance(reply, Exception):
            published.append(reply)
        else:
            ids = [as_text(entry_id) for entry_id in reply[::2]]
            published.append((ids, [one for one, is_new in zip(ids, reply[1::2], strict=True) if is_new]))
    return published


def _keys(config: QueueConfig) -> list[str]:
    return [drains_key(config.stream_key, config.consumer_group), config.stream_key]
