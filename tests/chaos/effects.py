"""What must be so of the effects at the end of a run: each once, in order, none lost but by a failover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Engine, func, select

from tests.chaos.plan import Message, effects, is_careful

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What was sent, and what of it the failovers lost."""

    #: The entry of each message that its sender was told last.
    entries: Mapping[Message, str]
    #: Entries that the old primary of a failover had and the new one had not.
    lost: Mapping[Message, Collection[str]] = field(default_factory=dict)
    #: The entry of before, of messages that were sent twice and added twice.
    first_entries: Mapping[Message, str] = field(default_factory=dict)

    def is_lost(self, msg: Message, entry_id: str) -> bool:
        """Whether a failover lost this entry."""
        return entry_id in self.lost.get(msg, ())

    def lost_for_good(self) -> set[Message]:
        """Messages whose one entry is lost: whoever sent them was not told."""
        return {msg for msg, entries in self.lost.items() if self.entries.get(msg) in entries}

    def broken(self) -> Iterator[str]:
        """What was added twice or lost, but by a failover; of that, what a replica had confirmed."""
        twice = [msg for msg, entry_id in self.first_entries.items() if not self.is_lost(msg, entry_id)]
        yield from _some(twice, "added a second time by a send that was made twice")
        gone = self.lost_for_good() | self.first_entries.keys()
        yield from _some([msg for msg in gone if is_careful(msg[0])], "lost that a replica had confirmed")


class Effects:
    """What the committed effects say of what was sent.

    The order is that of the ids. They are drawn when a row is inserted and not when it is committed, but a
    later message of a key may only begin after the commit of the one before, so its id must be larger.
    """

    def __init__(self, engine: Engine, sent: Sent) -> None:
        self._sent = sent
        self._last: Counter[str] = Counter()
        self._done: set[Message] = set()
        self._done_and_lost: Counter[tuple[Message, str]] = Counter()
        self._broken: dict[str, list[Message]] = {}
        self.count = 0
        #: At a later attempt than the first.
        self.late = 0
        self.highest_attempt = 0
        #: Effects of lost entries that came after that of a later message of the same key: one worker still
        #: had them from the old primary, when another one read the new primary.
        self.lost_out_of_order = 0
        columns = (effects.c.key, effects.c.number, effects.c.entry_id, effects.c.attempt)
        with engine.connect().execution_options(yield_per=10_000) as connection:
            for key, number, entry_id, attempt in connection.execute(select(*columns).order_by(effects.c.id)):
                self.count += 1
                self.late += attempt > 1
                self.highest_attempt = max(self.highest_attempt, attempt)
                self._add((key, number), entry_id)

    @property
    def of_lost(self) -> int:
        """How many are of entries that a failover lost, after they were handled."""
        return self._done_and_lost.total()

    @property
    def doubled_by_failover(self) -> int:
        """How many messages have two effects: one of an entry that was lost, and one as they were sent again.

        Their sender had got no answer, or had been told that no replica had confirmed it.
        """
        return sum(msg in self._done for msg, _ in self._done_and_lost)

    def broken(self, *, unfinished: Collection[Message]) -> Iterator[str]:
        """Which messages have not had their effect exactly once, from the entry that was sent, in order.

        What is unfinished or lost by a failover may be without; what is finished without one is lost.
        """
        gone = self._sent.lost_for_good()
        lost = [
            msg
            for msg in self._sent.entries
            if msg not in self._done and msg not in unfinished and msg not in gone
        ]
        yield from _some(lost, "lost: finished without an effect")
        twice = [msg for (msg, _), count in self._done_and_lost.items() if count > 1]
        yield from _some(twice, "with more than one effect, lost by a failover")
        for problem, messages in self._broken.items():
            yield from _some(messages, problem)

    def _add(self, msg: Message, entry_id: str) -> None:
        key, number = msg
        is_late = number < self._last[key]
        if self._sent.is_lost(msg, entry_id):
            # Not what the order of others is measured by: a batch that is sent again begins anew.
            self._done_and_lost[msg, entry_id] += 1
            self.lost_out_of_order += is_late
            return
        self._last[key] = max(self._last[key], number)
        known = self._sent.entries.get(msg)
        problems = {
            "with more than one effect": msg in self._done,
            "with an effect that were never sent": known is None,
            "with an effect of another entry than the one that was sent": known not in (None, entry_id),
            "whose effect came after that of a later message of the same key": is_late,
        }
        for problem, is_so in problems.items():
            if is_so:
                self._broken.setdefault(problem, []).append(msg)
        self._done.add(msg)


def count_effects(engine: Engine) -> int:
    """How many effects are committed."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(effects)) or 0


def _some(messages: list[Message], problem: str) -> Iterator[str]:
    if messages:
        shown = ", ".join(f"{key}:{number}" for key, number in messages[:_SHOWN])
        yield f"{len(messages)} messages {problem}: {shown}{' …' if len(messages) > _SHOWN else ''}"
