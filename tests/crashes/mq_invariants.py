"""What must be so in the MQ after every crash, and after the recovery from it, seen from outside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from tests.crashes.mq_site import GROUP, MqSite, effects

_ALL = 1_000

#: A message as a scenario knows it, whatever its entry: its key and its number.
Name = tuple[str | None, int]


@dataclass(slots=True, kw_only=True)
class MqSnapshot:
    """Every place that a message can be in, by its name, once for each copy."""

    #: In a partition, in all; and of these not delivered, and delivered and not acked.
    entries: Counter[Name] = field(default_factory=Counter)
    new: Counter[Name] = field(default_factory=Counter)
    pending: Counter[Name] = field(default_factory=Counter)
    delayed: Counter[Name] = field(default_factory=Counter)
    dead: Counter[Name] = field(default_factory=Counter)
    #: Committed effects in their order, doubles included.
    effects: list[Name] = field(default_factory=list)
    #: Entries in the waiting set or with a failure that are not pending, and names without item or due time.
    strays: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> Counter[Name]:
        """Copies that somebody will still look at."""
        return self.new + self.pending + self.delayed

    @property
    def to_redeliver(self) -> set[Name]:
        """What was committed and will come once more."""
        return set(self.pending) & set(self.effects)


def look(site: MqSite) -> MqSnapshot:
    """Take a snapshot with plain commands, none of them conquiet's own."""
    seen = MqSnapshot()
    for partition in site.topic.partitions:
        _look_at_partition(seen, site, partition)
    keys, client = site.topic.keys, site.client
    items = client.hgetall(keys.delayed_items(0))
    seen.delayed.update(_name_of(item.partition(":")[2]) for item in items.values())
    seen.strays += {*items} ^ {*client.zrange(keys.delayed(0), 0, -1)}
    for _, fields in client.xrange(keys.dead_letters(0)):
        letter = json.loads(fields["data"])
        seen.dead[_name_of(json.dumps(letter["envelope"])) if "envelope" in letter else (None, 0)] += 1
    with site.engine.connect() as connection:
        rows = connection.execute(select(effects.c.key, effects.c.number).order_by(effects.c.id))
        seen.effects = [(key, number) for key, number in rows]
    return seen


def is_unfinished(site: MqSite, partition: int) -> bool:
    """Whether a partition has anything new, pending or delayed."""
    stream, keys = site.topic.keys.stream(partition), site.topic.keys
    if not site.client.exists(stream):
        return False
    groups = site.client.xinfo_groups(stream)
    if not groups or groups[0]["pending"] or site.client.exists(keys.delayed(partition)):
        return True
    return groups[0]["last-delivered-id"] != site.client.xinfo_stream(stream)["last-generated-id"]


def broken_by_crash(
    seen: MqSnapshot, sent: Iterable[Name], *, has_inbox: bool, is_strict: bool
) -> Iterator[str]:
    """What no crash may leave behind, not even for a moment."""
    done = {*seen.effects, *seen.dead}
    yield from _each(
        set(sent) - done - set(seen.unfinished), "is lost: settled without effect or dead letter"
    )
    copies = seen.unfinished + seen.dead
    yield from _each([name for name, count in copies.items() if count > 1], "is there more than once")
    if has_inbox:
        doubles = [name for name, count in Counter(seen.effects).items() if count > 1]
        yield from _each(doubles, "has its effect twice in spite of the inbox")
        yield from _each(set(seen.effects) & set(seen.dead), "has its effect and is a dead letter")
    yield from (f"{stray} is kept but not pending" for stray in seen.strays)
    if is_strict:
        firsts = [*dict.fromkeys(seen.effects)]
        for key in {key for key, _ in firsts}:
            numbers = [number for other, number in firsts if other == key]
            if numbers != sorted(numbers):
                yield f"the effects of key {key} came in the order {numbers}"


def broken_by_recovery(
    seen: MqSnapshot, sent: Iterable[Name], *, dead: Iterable[Name], may_die: Iterable[Name] = ()
) -> Iterator[str]:
    """What must be so once another consumer has finished the work of the dead one."""
    # At its last attempt a message either has its effect or is a dead letter.
    dead = {*dead, *(set(may_die) & set(seen.dead))}
    yield from _each(seen.new, "was never read")
    yield from _each(seen.pending, "is still pending")
    yield from _each(seen.delayed, "is still delayed")
    yield from _each(set(sent) - set(dead) - set(seen.effects), "was never handled")
    yield from _each(set(dead) ^ set(seen.dead), "is a dead letter and should not be, or the other way round")


def _look_at_partition(seen: MqSnapshot, site: MqSite, partition: int) -> None:
    client, keys = site.client, site.topic.keys
    stream = keys.stream(partition)
    entries = {entry_id: _name_of(fields.get("data")) for entry_id, fields in client.xrange(stream)}
    groups = client.xinfo_groups(stream) if client.exists(stream) else []
    last = next((group["last-delivered-id"] for group in groups if group["name"] == GROUP), "0-0")
    rows = client.xpending_range(stream, GROUP, "-", "+", _ALL) if groups else []
    pending = {row["message_id"] for row in rows}
    seen.entries.update(entries.values())
    seen.new.update(name for entry_id, name in entries.items() if _parts(entry_id) > _parts(last))
    seen.pending.update(entries[entry_id] for entry_id in pending)
    kept = {
        *client.zrange(keys.waiting(GROUP, partition), 0, -1),
        *client.hkeys(keys.failures(GROUP, partition)),
    }
    seen.strays += kept - pending


def _each(names: Iterable[Name], problem: str) -> Iterator[str]:
    return (f"{key}:{number} {problem}" for key, number in sorted(names, key=str))


def _name_of(data: str | None) -> Name:
    # An entry without data is the malformed one: it has no name of its own.
    payload: dict[str, Any] = json.loads(data)["payload"] if data else {"key": None, "number": 0}
    return payload["key"], payload["number"]


def _parts(entry_id: str) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split("-")))
