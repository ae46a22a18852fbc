"""The Lua scripts of the queue, each behind one typed function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Literal, NamedTuple

from redis.exceptions import OutOfMemoryError, ResponseError

from conquiet.queue.config import QueueConfig
from conquiet.queue.connection import Client, as_text, execute
from conquiet.queue.lua import Argument, LuaScript
from conquiet.queue.message import RawEntry

#: What becomes of an entry that stays pending.
PendingChange = Literal["renew", "release", "hand_back"]

_CREATE_GROUP, _ACK_AND_READ, _CHANGE_PENDING, _TAKE_FROM, _REMOVE_CONSUMER, _ENQUEUE_ONCE = (
    LuaScript(files(__name__).joinpath(f"{name}.lua").read_bytes())
    for name in (
        "create_group",
        "ack_and_read",
        "change_pending",
        "take_from",
        "remove_consumer",
        "enqueue_once",
    )
)


def create_group(
    client: Client, stream: str, group: str, *, after: str = "0-0", create_stream: bool = True
) -> None:
    """Create the group, at the stream's beginning or after an id, and maybe the stream, unless there."""
    arguments = (group.encode(), after, *(("MKSTREAM",) if create_stream else ()))
    try:
        try:
            execute(client, "XGROUP CREATE", stream.encode(), *arguments)
        except OutOfMemoryError:
            # Said before the server looks whether the group is there.
            _CREATE_GROUP.run(client, [stream], arguments)
    except ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise


def ack_and_read(
    client: Client, config: QueueConfig, entry_ids: Sequence[str], count: int, max_bytes: int
) -> tuple[int, list[RawEntry]]:
    """Ack, then deliver up to `count` new entries, no more after so many bytes; returns how many acks."""
    names = [config.consumer_group.encode(), config.consumer_name.encode()]
    arguments: list[Argument] = [*names, count, max_bytes, *entry_ids]
    acked, flat, others = _ACK_AND_READ.run(client, [config.stream_key], arguments)
    entries = [(entry_id, [b"data", value]) for entry_id, value in zip(flat[::2], flat[1::2], strict=True)]
    return acked, entries + others


def change_pending(
    client: Client,
    config: QueueConfig,
    change: PendingChange,
    counts: Mapping[str, int],
) -> set[str]:
    """Renew, release or hand back entries; returns the ids of those that were still pending at the consumer.

    Args:
        counts: how often each was delivered, by entry id.
    """
    entries = [part for entry_id, count in counts.items() for part in (entry_id, count)]
    arguments = [config.consumer_group.encode(), config.consumer_name.encode(), change, *entries]
    return {entry_id.decode() for entry_id in _CHANGE_PENDING.run(client, [config.stream_key], arguments)}


def take_from(
    client: Client,
    config: QueueConfig,
    consumer: str,
    start: str,
    count: int,
    *,
    max_bytes: int,
    drains: str | None = None,
) -> tuple[str | None, list[tuple[bytes, list[bytes], int]]]:
    """Take over a page of another consumer's pending list: its last id; id, fields, count of each entry.

    Args:
        max_bytes: no further one after so many.
        drains: the key of the group's drains; nothing is taken from one that is alive.
    """
    names = (config.consumer_group.encode(), config.consumer_name.encode(), consumer.encode())
    keys = [config.stream_key] if drains is None else [config.stream_key, drains]
    last, taken = _TAKE_FROM.run(client, keys, (*names, start, count, max_bytes))
    return last.decode() or None, [tuple(entry) for entry in taken]


def remove_consumer(client: Client, config: QueueConfig, consumer: str) -> bool:
    """Delete a consumer unless it has something pending."""
    arguments = [config.consumer_group.encode(), consumer.encode()]
    return bool(_REMOVE_CONSUMER.run(client, [config.stream_key], arguments))


class Added(NamedTuple):
    """The entry of a message; not new if its dedupe id was added before."""

    entry_id: str
    is_new: bool


def enqueue_once(
    client: Client, *, stream: str, added: str, window_ms: int, payloads: Sequence[tuple[str, bytes]]
) -> list[Added]:
    """Add named payloads that were not added before; `added` is the key of the hash of their ids."""
    named = [part for name_and_payload in payloads for part in name_and_payload]
    flat = _ENQUEUE_ONCE.run(client, [stream, added], [window_ms, *named])
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [Added(as_text(entry_id), bool(is_new)) for entry_id, is_new in pairs]
