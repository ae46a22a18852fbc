"""What must be so after every crash, and after the recovery from it, seen from outside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import select, text

from tests.crashes.site import GROUP, Site, effects

_ALL = 1_000
_OUTBOX = text("SELECT data FROM conquiet_outbox ORDER BY id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Every place that a message can be in, by entry id; what has an order is a list, oldest first."""

    stream: list[str]
    delivered: set[str]
    pending: set[str]
    dead_lettered: list[str]
    #: Committed effects, doubles included.
    effects: list[str]
    #: Committed outbox rows that are not published, and what was published.
    waiting: list[str]
    published: list[str]

    @property
    def to_redeliver(self) -> set[str]:
        """What was committed or published and will be once more: the price of at-least-once."""
        return self.pending & set(self.effects) | set(self.waiting) & set(self.published)


def look(site: Site) -> Snapshot:
    """Take a snapshot with plain commands, none of them conquiet's own."""
    client = site.client
    group = next(group for group in client.xinfo_groups(site.stream) if group["name"] == GROUP)
    with site.engine.connect() as connection:
        committed = list(connection.scalars(select(effects.c.entry_id).order_by(effects.c.id)))
        waiting = list(connection.scalars(_OUTBOX)) if site.outbox is not None else []
    return Snapshot(
        stream=site.entry_ids(),
        delivered=set(site.entry_ids(last=group["last-delivered-id"])),
        pending={row["message_id"] for row in client.xpending_range(site.stream, GROUP, "-", "+", _ALL)},
        dead_lettered=_named_ids(client.xrange(site.dead_letters), "originalMessageId"),
        effects=committed,
        waiting=[json.loads(data)["id"] for data in waiting],
        published=_named_ids(client.xrange(site.outbox_stream)),
    )


def broken_by_crash(seen: Snapshot, enqueued: list[str], site: Site) -> Iterator[str]:
    """What no crash may leave behind, not even for a moment."""
    yield from _each(set(enqueued) - set(seen.stream), "is gone from the stream")
    finished = {*seen.effects, *seen.dead_lettered}
    yield from _each(seen.delivered - seen.pending - finished, "was acked without its committed effect")
    if site.inbox is not None:
        yield from _each(_doubles(seen.effects), "has its effect twice in spite of the inbox")
    if site.outbox is not None:
        told = {*seen.waiting, *seen.published}
        yield from _each(set(seen.effects) - told, "has its effect but lost its outbox message")
        yield from _each(told - set(seen.effects), "has an outbox message but no effect")


def broken_by_recovery(
    seen: Snapshot, enqueued: list[str], site: Site, *, dead_lettered: int
) -> Iterator[str]:
    """What must be so once another consumer has finished the work of the dead one."""
    yield from broken_by_crash(seen, enqueued, site)
    yield from _each(set(enqueued) - {*seen.effects, *seen.dead_lettered}, "was never handled")
    yield from _each(seen.pending, "is still pending")
    yield from _each(set(enqueued) - seen.delivered, "was never delivered")
    yield from _each(seen.waiting, "is still in the outbox")
    if len(seen.dead_lettered) != dead_lettered:
        yield f"{len(seen.dead_lettered)} dead letters and not {dead_lettered}: {seen.dead_lettered}"
    if site.outbox is not None and _firsts(seen.published) != _firsts(seen.effects):
        yield f"published in the order {seen.published}, committed in the order {seen.effects}"
    published, committed = Counter(seen.published), Counter(seen.effects)
    yield from _each((published - committed) if site.outbox is not None else (), "is published twice")


def _each(entry_ids: Collection[str], problem: str) -> Iterator[str]:
    return (f"{entry_id} {problem}" for entry_id in sorted(entry_ids))


def _named_ids(entries: list[tuple[str, dict[str, str]]], member: str = "id") -> list[str]:
    return [json.loads(fields["data"])[member] for _, fields in entries]


def _doubles(entry_ids: list[str]) -> set[str]:
    return {entry_id for entry_id in entry_ids if entry_ids.count(entry_id) > 1}


def _firsts(entry_ids: list[str]) -> list[str]:
    return list(dict.fromkeys(entry_ids))
