"""The trouble of a run: at random moments a worker, a server or the database dies, freezes or refuses."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import ClassVar, Literal, Protocol

from tests.chaos.crew import Crew
from tests.chaos.database import Database
from tests.chaos.plan import INBOX_LOCK_S, LEASE_TTL_MS
from tests.chaos.servers import AofServer, ServerPair
from tests.eventually import HANG_S

Kind = Literal[
    "kill",
    "stop",
    "freeze",
    "leave",
    "restart",
    "failover",
    "full",
    "read_only",
    "kill_child",
    "stop_child",
]

_WEIGHTS: dict[Kind, int] = {
    "kill": 8,
    "stop": 5,
    "freeze": 3,
    "leave": 2,
    "restart": 3,
    "failover": 2,
    "full": 2,
    "read_only": 2,
}
KINDS = (*_WEIGHTS,)


class NoisyPlan(Protocol):
    """What is to know of a plan here."""

    @property
    def noisy_s(self) -> float: ...
    @property
    def trouble_every_s(self) -> float: ...


class AnySender(Protocol):
    """Who sends meanwhile."""

    @property
    def is_done(self) -> bool: ...
    @property
    def count(self) -> int: ...


class Trouble:
    """Makes trouble, each kind at least once."""

    weights: ClassVar[dict[Kind, int]] = _WEIGHTS
    #: A worker that is silent for so long is taken for dead.
    silence_s: ClassVar[float] = LEASE_TTL_MS / 1000

    def __init__(self, crew: Crew, servers: AofServer, database: Database, rng: random.Random) -> None:
        self._crew = crew
        self._servers = servers
        self._database = database
        self._rng = rng
        self._next = [*self.weights]
        rng.shuffle(self._next)
        #: What lasts beside other trouble: when it ends (monotonic), and how.
        self._lasting: dict[Kind, tuple[float, Callable[[], None]]] = {}
        self.counts: Counter[Kind] = Counter()

    def make(self, plan: NoisyPlan, sender: AnySender) -> None:
        """Make trouble for a time, and for as long as messages are sent; then let everybody go on."""
        now = sent_at = time.monotonic()
        until, next_at, sent = now + plan.noisy_s, now + min(1.0, plan.noisy_s / 10), 0
        while now < until or self._next or not sender.is_done:
            self._crew.look_after()
            self._crew.fill_up()
            self._end_what_lasted(now)
            if now >= next_at:
                self._make_one(is_last_chance=sender.is_done)
                next_at = time.monotonic() + self._rng.uniform(0.25, 1.75) * plan.trouble_every_s
            time.sleep(0.02)
            now = time.monotonic()
            if sender.count > sent:
                sent, sent_at = sender.count, now
            elif now > max(until, sent_at + HANG_S):
                # What hangs is for the findings.
                break
        self._end_what_lasted(float("inf"))
        self._crew.go_on()
        self._crew.fill_up()

    def _make_one(self, *, is_last_chance: bool) -> None:
        kind = self._next.pop() if self._next else self._random_kind()
        if kind in self._lasting:
            kind = "kill"
        if self._make(kind):
            self.counts[kind] += 1
        elif kind not in self.counts and not (kind == "freeze" and is_last_chance):
            # It has to come: later. Only to be frozen in a transaction, a worker must have something to do.
            self._next.insert(0, kind)

    def _make(self, kind: Kind) -> bool:
        """Whether there was somebody to make it for."""
        uniform = self._rng.uniform
        match kind:
            case "kill":
                self._crew.kill_one()
            case "stop":
                return self._crew.stop_one(uniform(1.1, 2.5) * self.silence_s)
            case "kill_child":
                return self._crew.kill_child()
            case "stop_child":
                return self._crew.stop_child(uniform(0.2, 2.5) * self.silence_s)
            case "freeze":
                # For so long that whoever takes over has given up waiting for the inbox row, and tries again.
                seconds = uniform(1.5, 3.0) * self.silence_s + uniform(1.5, 3.0) * INBOX_LOCK_S
                return self._crew.stop_one(seconds, is_in_time=self._database.is_writing)
            case "leave":
                self._crew.ask_one_to_leave()
            case "restart":
                # One in four is longer than a lease.
                away_s = self._rng.choice([0.0, 0.2, 0.5, 1.2 * self.silence_s])
                self._servers.restart(away_s=away_s, pause=self._pause)
            case "failover":
                assert isinstance(self._servers, ServerPair)
                away_s = self._rng.choice([0.0, 0.2, 0.5, 1.2 * self.silence_s])
                lag_s = uniform(0.1, 1.5) * self.silence_s
                self._servers.fail_over(lag_s=lag_s, away_s=away_s, pause=self._pause)
            case "full":
                self._servers.fill()
                self._lasting[kind] = time.monotonic() + uniform(1.0, 5.0), self._servers.make_room
            case "read_only":
                seconds = uniform(3.0, 8.0)
                self._database.refuse_writes()
                # In a thread, as the restart of a server takes longer than workers wait for a database.
                timer = threading.Timer(seconds, self._database.accept_writes)
                timer.start()
                self._lasting[kind] = time.monotonic() + seconds, timer.join
        return True

    def _random_kind(self) -> Kind:
        return self._rng.choices([*self.weights], weights=[*self.weights.values()])[0]

    def _end_what_lasted(self, now: float) -> None:
        for kind, (ends_at, end) in [*self._lasting.items()]:
            if now >= ends_at:
                end()
                del self._lasting[kind]

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._crew.look_after()
            time.sleep(0.02)
