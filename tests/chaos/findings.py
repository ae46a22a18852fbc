"""What must be so at the end of a run, seen from outside with plain commands, and the figures to print."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, func, select

from conquiet.mq.keys import TopicKeys
from tests.chaos.plan import GROUP, TOPIC, Plan, effects
from tests.services import Client

_SHOWN = 5
_KEYS = TopicKeys(TOPIC, "single")


@dataclass(slots=True, kw_only=True)
class Figures:
    """What a run did; without violations it was a success."""

    plan: Plan
    database: str
    sent: int = 0
    failed_sends: int = 0
    repeated_sends: int = 0
    effects: int = 0
    late_effects: int = 0
    skipped: int = 0
    trouble: Counter[str] = field(default_factory=Counter)
    noisy_s: float = 0.0
    drained_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    #: What was left to do when nothing had been settled for long: nothing of it is lost.
    unfinished: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        plan, trouble = self.plan, self.trouble
        seconds = self.noisy_s + self.drained_s
        lines = [
            f"chaos: {plan.messages:,} messages, {plan.keys} keys, {plan.partitions} partitions, "
            f"{plan.workers} workers, {self.database}, seed {plan.seed}",
            f"  sent      {self.sent:,} ({self.failed_sends} sends failed and were made again, "
            f"{self.repeated_sends} were made twice)",
            f"  effects   {self.effects:,} ({self.late_effects:,} at a later attempt than the first)",
            f"  trouble   {trouble['kill']} workers killed, {trouble['stop']} stopped for longer than their "
            f"lease, {trouble['leave']} left; {trouble['restart']} server restarts",
            f"  repeated  {self.skipped:,} messages came again after their commit: the inbox skipped them",
            f"  time      {seconds:.1f} s, {self.noisy_s:.1f} s of it noisy; "
            f"{self.effects / max(seconds, 0.1):,.0f} messages/s",
            f"  violated  {len(self.violations) or 'nothing'}",
        ]
        lines += [f"VIOLATION {violation}" for violation in self.violations]
        return "\n".join([*lines, *(f"NOT FINISHED {what}" for what in self.unfinished)])


def count_effects(engine: Engine) -> int:
    """How many effects are committed."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(effects)) or 0


def count_late_effects(engine: Engine) -> int:
    """How many of them come from a later attempt than the first."""
    with engine.connect() as connection:
        late = select(func.count()).select_from(effects).where(effects.c.attempt > 1)
        return connection.scalar(late) or 0


def broken_by_effects(
    engine: Engine, sent: Mapping[tuple[str, int], str], *, unfinished: Collection[tuple[str, int]]
) -> Iterator[str]:
    """Each message's effect exactly once, from the entry that was sent, per key in order.

    What is unfinished may be without its effect; what is finished without one is lost.

    The order is that of the ids. They are drawn when a row is inserted and not when it is committed, but a
    later message of a key may only begin after the commit of the one before, so its id must be larger.
    """
    columns = (effects.c.key, effects.c.number, effects.c.entry_id)
    with engine.connect() as connection:
        rows = list(connection.execute(select(*columns).order_by(effects.c.id)))
    counts = Counter((key, number) for key, number, _ in rows)
    lost = [msg for msg in sent if msg not in counts and msg not in unfinished]
    yield from _some(lost, "lost: finished without an effect")
    yield from _some([msg for msg, count in counts.items() if count > 1], "with more than one effect")
    yield from _some([msg for msg in counts if msg not in sent], "with an effect that were never sent")
    other = [(key, number) for key, number, entry_id in rows if sent.get((key, number), entry_id) != entry_id]
    yield from _some(other, "with an effect of another entry than the one that was sent")
    last: Counter[str] = Counter()
    late = []
    for key, number, _ in rows:
        if number < last[key]:
            late.append((key, number))
        last[key] = max(last[key], number)
    yield from _some(late, "whose effect came after that of a later message of the same key")


def broken_by_streams(client: Client, plan: Plan, *, sent: int) -> Iterator[str]:
    """All entries are there once, and none of them was given up."""
    entries = sum(client.xlen(_KEYS.stream(partition)) for partition in range(plan.partitions))
    if entries != sent:
        yield f"the partitions have {entries} entries, {sent} were sent"
    if dead := client.xlen(_KEYS.dead_letters(0)):
        yield f"there are {dead} dead letters, the first is {client.xrange(_KEYS.dead_letters(0), count=1)}"


def left_to_do(client: Client, plan: Plan) -> Iterator[str]:
    """What is left to do, by partition."""
    for partition in range(plan.partitions):
        stream = _KEYS.stream(partition)
        if not client.exists(stream):
            continue
        group = _group_of(client, stream)
        if group is None:
            yield f"{stream} was never read"
            continue
        if group["pending"]:
            yield f"{stream} has {group['pending']} pending entries"
        if group["last-delivered-id"] != client.xinfo_stream(stream)["last-generated-id"]:
            yield f"{stream} has a lag of {group.get('lag')}"
        if waiting := client.zcard(_KEYS.waiting(GROUP, partition)):
            yield f"{stream} has {waiting} entries that wait for their retry"


def count_settled(client: Client, plan: Plan) -> int:
    """How many entries were delivered and are pending no more, as the server counts them."""
    groups = [_group_of(client, _KEYS.stream(partition)) for partition in range(plan.partitions)]
    return sum((group["entries-read"] or 0) - group["pending"] for group in groups if group)


def unfinished_messages(client: Client, plan: Plan) -> set[tuple[str, int]]:
    """The messages that are pending, wait for their retry or were never delivered."""
    found = set()
    for partition in range(plan.partitions):
        stream = _KEYS.stream(partition)
        group = _group_of(client, stream)
        ids = set(client.zrange(_KEYS.waiting(GROUP, partition), 0, -1))
        if group and group["pending"]:
            rows = client.xpending_range(stream, GROUP, "-", "+", group["pending"])
            ids |= {row["message_id"] for row in rows}
        last = group["last-delivered-id"] if group else "0-0"
        entries = client.xrange(stream, f"({last}")
        entries += [entry for entry_id in ids for entry in client.xrange(stream, entry_id, entry_id)]
        payloads = [json.loads(fields["data"])["payload"] for _, fields in entries]
        found |= {(payload["key"], payload["number"]) for payload in payloads}
    return found


def _group_of(client: Client, stream: str) -> dict[str, Any] | None:
    if not client.exists(stream):
        return None
    return next((info for info in client.xinfo_groups(stream) if info["name"] == GROUP), None)


def left_behind(client: Client, plan: Plan) -> Iterator[str]:
    """What workers that left in peace, with all work done, must not leave in Redis."""
    for partition in range(plan.partitions):
        for key in (_KEYS.lease(GROUP, partition), _KEYS.failures(GROUP, partition)):
            if client.exists(key):
                yield f"{key} is left: {client.hgetall(key)}"
    if members := client.zcard(_KEYS.members(GROUP)):
        yield f"{members} members are left in the group"


def _some(messages: list[tuple[str, int]], problem: str) -> Iterator[str]:
    if messages:
        shown = ", ".join(f"{key}:{number}" for key, number in messages[:_SHOWN])
        yield f"{len(messages)} messages {problem}: {shown}{' …' if len(messages) > _SHOWN else ''}"
