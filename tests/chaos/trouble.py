"""The trouble of a run: at random moments somebody dies, freezes or leaves, or the server is killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Literal

from conquiet import EmbeddedServer
from tests.chaos.crew import Crew
from tests.chaos.plan import LEASE_TTL_MS

Kind = Literal["kill", "stop", "restart", "leave"]

_WEIGHTS: dict[Kind, int] = {"kill": 4, "stop": 3, "restart": 2, "leave": 1}
_LEASE_S = LEASE_TTL_MS / 1000


class Trouble:
    """Makes trouble for a time, and for as long as it takes until each kind came once."""

    def __init__(self, crew: Crew, server: EmbeddedServer, rng: random.Random) -> None:
        self._crew = crew
        self._server = server
        self._rng = rng
        self._next = [*_WEIGHTS]
        rng.shuffle(self._next)
        self.counts: Counter[Kind] = Counter()

    def make(self, seconds: float) -> None:
        """Make trouble, then let everybody go on."""
        until = time.monotonic() + seconds
        next_at = time.monotonic() + min(1.0, seconds / 10)
        while time.monotonic() < until or self._next:
            self._crew.look_after()
            self._crew.fill_up()
            if time.monotonic() >= next_at:
                self._make_one()
                next_at = time.monotonic() + self._rng.uniform(0.3, 2.2)
            time.sleep(0.02)
        self._crew.go_on()
        self._crew.fill_up()

    def _make_one(self) -> None:
        kind = self._next.pop() if self._next else self._random_kind()
        match kind:
            case "kill":
                self._crew.kill_one()
            case "stop":
                self._crew.stop_one(self._rng.uniform(1.1, 2.5) * _LEASE_S)
            case "restart":
                self._restart_server()
            case "leave":
                self._crew.ask_one_to_leave()
        self.counts[kind] += 1

    def _random_kind(self) -> Kind:
        return self._rng.choices([*_WEIGHTS], weights=[*_WEIGHTS.values()])[0]

    def _restart_server(self) -> None:
        self._server.kill()
        # One in four is longer than a lease.
        self._away(self._rng.choice([0.0, 0.2, 0.5, 1.2 * _LEASE_S]))
        self._server.restart()

    def _away(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._crew.look_after()
            time.sleep(0.02)
