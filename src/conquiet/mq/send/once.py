"""Messages that are added once: one script for all that go to the same partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from conquiet.mq.scripts import script
from conquiet.mq.topics import Topic


class OnceEntry(NamedTuple):
    """One entry to add; without a dedupe id it is added whatever was added before."""

    partition: int
    dedupe_id: str | None
    data: bytes


class Added(NamedTuple):
    """Where a message is; not new if its dedupe id was added before."""

    entry_id: str
    is_new: bool


def add_once(topic: Topic, entry: OnceEntry, window_ms: int) -> Added:
    """Add one entry, unless its dedupe id was added within the window."""
    keys, arguments = _call(topic, [entry], window_ms)
    (added,) = _added(topic.run("send_once", keys, *arguments))
    return added


def add_all_once(topic: Topic, entries: Sequence[OnceEntry], window_ms: int) -> list[Added | Exception]:
    """Add entries in order, in one round trip; for those of a partition that failed, its error."""
    places: dict[int, list[int]] = {}
    for place, entry in enumerate(entries):
        places.setdefault(entry.partition, []).append(place)
    calls = [_call(topic, [entries[place] for place in found], window_ms) for found in places.values()]
    with topic.visible("send_once"):
        replies = script("send_once").run_all(topic.client, calls)
    added: dict[int, Added | Exception] = {}
    for found, reply in zip(places.values(), replies, strict=True):
        each = [reply] * len(found) if isinstance(reply, Exception) else _added(reply)
        added |= zip(found, each, strict=True)
    return [added[place] for place in range(len(entries))]


def _call(topic: Topic, entries: Sequence[OnceEntry], window_ms: int) -> tuple[list[str], list[Any]]:
    partition, keys = entries[0].partition, topic.keys
    arguments: list[Any] = [window_ms, ""]
    for entry in entries:
        arguments += (entry.dedupe_id or "", entry.data)
    return [keys.stream(partition), keys.deduped(partition), keys.deduped_until(partition)], arguments


def _added(reply: Sequence[Any]) -> list[Added]:
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return [Added(entry_id.decode(), bool(is_new)) for entry_id, is_new in pairs]
