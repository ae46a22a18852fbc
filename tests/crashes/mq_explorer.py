"""The explorer over the MQ: other scenes, other invariants, another recovery, the same crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from conquiet.errors import ConquietError
from conquiet.testing.crash_points import CrashPoints
from tests.crashes.explorer import Explorer
from tests.crashes.mq_invariants import (
    MqSnapshot,
    Name,
    broken_by_crash,
    broken_by_recovery,
    is_unfinished,
    look,
)
from tests.crashes.mq_site import HOUR_MS, MqSite
from tests.crashes.site import Address
from tests.eventually import HANG_S, eventually

_MAX_ROUNDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MqScenario:
    """Something to die in: `prepare` runs before any point is counted, `run` dies at each point in turn."""

    prepare: Callable[[MqSite], None]
    run: Callable[[MqSite], None]
    #: What an application does after a crash before anything is consumed, such as sending once more.
    recover: Callable[[MqSite], None] = lambda site: None
    #: The messages that must be there in the end, and whether they are from the beginning.
    sent: frozenset[Name]
    is_sent_before: bool = True
    #: Those of them that end as dead letters.
    dead: frozenset[Name] = frozenset()
    #: Those that do if the process dies before their commit.
    may_die: frozenset[Name] = frozenset()
    #: Messages before the beginning of the group: it is never given any of them.
    skipped: frozenset[Name] = frozenset()
    is_strict: bool = False
    has_inbox: bool = True
    has_outbox: bool = False
    is_async: bool = False
    #: Entries of one message, with the one that was sent.
    max_copies: int = 1
    max_points: int = 300
    timeout_s: int = int(HANG_S)


class MqExplorer(Explorer):
    """Explores one scenario of the MQ, once."""

    _scenario: MqScenario

    def _open(self, address: Address, *, client_name: str) -> MqSite:
        return MqSite(address, client_name=client_name)

    def _points(self, point: int, trace: Path) -> CrashPoints:
        return CrashPoints(point, self._fault, trace=trace, has_replies=False)

    def _may_raise(self, error: BaseException) -> bool:
        # A consumer bears errors of conquiet; anything else ends it, so none may come out of a lost answer.
        return isinstance(error, ConquietError)

    def _check_and_recover(self, address: Address, enqueued: list[str]) -> list[str]:
        with MqSite(address, client_name="look", ahead_ms=HOUR_MS) as site:
            # What the child sent last may still be on its way; the server reads it before it sees the end.
            eventually(lambda: address.stream not in {client["name"] for client in site.client.client_list()})
            left = look(site)
            self._seen.redelivered += len(left.to_redeliver)
            known = self._scenario.sent if self._scenario.is_sent_before else frozenset()
            broken = [*self._broken_by_crash(left, known)]
            try:
                self._scenario.recover(site)
                self._work_to_the_end(site)
            except Exception as error:
                broken.append(f"the recovery failed: {error!r}")
            seen = look(site)
            broken += self._broken_by_crash(seen, self._scenario.sent)
            scenario = self._scenario
            broken += broken_by_recovery(seen, scenario.sent, dead=scenario.dead, may_die=scenario.may_die)
            handled = sorted(scenario.skipped & set(seen.effects))
            broken += [f"{key}:{number} is before the group, and was handled" for key, number in handled]
            _delete(site)
        return broken

    def _broken_by_crash(self, seen: MqSnapshot, sent: frozenset[Name]) -> list[str]:
        scenario = self._scenario
        broken = broken_by_crash(seen, sent, has_inbox=scenario.has_inbox, is_strict=scenario.is_strict)
        most = scenario.max_copies
        many = [name for name, count in seen.entries.items() if count > most]
        return [*broken, *(f"{key}:{number} was added more than {most} times" for key, number in many)]

    def _work_to_the_end(self, site: MqSite) -> None:
        ordering: Literal["default", "strict"] = "strict" if self._scenario.is_strict else "default"
        for partition in site.topic.partitions:
            rounds = iter(range(_MAX_ROUNDS))

            def is_last(partition=partition, rounds=rounds) -> bool:
                site.move_delayed()
                return not is_unfinished(site, partition) or next(rounds, None) is None

            if not is_last():
                site.work("operator", partition, is_last_round=is_last, ordering=ordering)


def _delete(site: MqSite) -> None:
    for key in site.client.scan_iter(match=f"*{site.topic.name}*"):
        site.client.delete(key)
