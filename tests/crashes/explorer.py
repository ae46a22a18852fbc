"""The explorer: a child ends at each crash point of a scenario in turn, and what it left is looked at."""

from __future__ import annotations

import functools
import shutil
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis.utils

from conquiet import DrainLimits, OutboxRelay, drain, drain_stale
from conquiet.queue import open_client
from conquiet.testing.crash_points import (
    CRASHED,
    ENDED,
    CrashPoints,
    Fault,
    last_point,
    status_of_child,
)
from tests.crashes.invariants import broken_by_crash, broken_by_recovery, look
from tests.crashes.site import Address, Site
from tests.eventually import HANG_S, eventually

# redis-py looks it up among the installed packages for every connection, and each point has some.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Something to die in: `prepare` runs before any point is counted, `run` dies at each point in turn."""

    prepare: Callable[[Site], None]
    run: Callable[[Site], None]
    has_inbox: bool = False
    has_outbox: bool = False
    is_async: bool = False
    #: Of the recovery's `drain_stale`, and how many entries are in the dead letters after it.
    max_deliveries: int | None = None
    dead_lettered: int = 0
    #: What an operator does again before the recovery drains.
    run_again: Callable[[Site], None] | None = None
    max_points: int = 300
    #: A child that takes longer is killed, and that is a violation.
    timeout_s: int = int(HANG_S)


@dataclass(slots=True, kw_only=True)
class Exploration:
    """What an exploration saw, in plain JSON values."""

    scenario: str
    fault: Fault
    #: The name of each point at which a child ended, in order.
    points: list[str] = field(default_factory=list)
    #: Messages that were left committed and not acked, or published and not removed, over all points.
    redelivered: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{len(self.points)} points, {self.redelivered} redelivered"
        return f"{self.fault} in {self.scenario}: {counts}, {len(self.violations)} violations"


class Explorer:
    """Explores one scenario, once; forks, so it needs a process without threads."""

    def __init__(self, name: str, scenario: Any, fault: Fault, *, url: str, directory: Path) -> None:
        #: A `Scenario`, or what a class below explores.
        self._scenario = scenario
        self._fault = fault
        self._url = url
        self._directory = directory
        self._seen = Exploration(scenario=name, fault=fault)
        #: The database with its tables and no rows, made once and copied for each point.
        self._empty: bytes | None = None

    def explore(self, only: int | None = None) -> Exploration:
        """Let children end at point 1, 2, 3, … until one comes to the end; or at one point only."""
        with open_client(self._url) as client:
            # A short BLOCK ends at its end, and not some milliseconds later.
            client.config_set("hz", 500)
        most = self._scenario.max_points
        # A rehearsal leaves the Lua scripts with the server: each child after it passes the same points.
        status = self._visit(most)
        if status == CRASHED:
            self._seen.violations.append(f"the scenario did not end within {most} points")
        if status == ENDED:
            for point in range(1, most) if only is None else [only]:
                if self._visit(point) != CRASHED:
                    break
        signal.alarm(0)
        return self._seen

    def _visit(self, point: int) -> int:
        # Nobody handles SIGALRM, so a point that has no end ends the process.
        signal.alarm(int(2 * HANG_S))
        # The same for all points, so that one engine can serve them all.
        directory = self._directory / "point"
        directory.mkdir()
        address = Address(
            url=self._url,
            stream=f"crash:{uuid.uuid4().hex}",
            database=directory / "crash.db",
            has_inbox=self._scenario.has_inbox,
            has_outbox=self._scenario.has_outbox,
            is_async=self._scenario.is_async,
        )
        trace = directory / "trace"
        enqueued = self._prepare(address)
        status = self._run_child(point, address, trace)
        where = self._name_end(point, status, trace)
        broken = dict.fromkeys(self._check_and_recover(address, enqueued))
        self._seen.violations += [f"{where}: {problem}" for problem in broken]
        shutil.rmtree(directory)
        return status

    def _open(self, address: Address, *, client_name: str) -> Any:
        return Site(address, client_name=client_name)

    def _points(self, point: int, trace: Path) -> CrashPoints:
        return CrashPoints(point, self._fault, trace=trace)

    def _may_raise(self, error: BaseException) -> bool:
        return True

    def _prepare(self, address: Address) -> list[str]:
        if self._empty is not None:
            address.database.write_bytes(self._empty)
        with self._open(address, client_name="prepare") as site:
            if self._empty is None:
                site.create_tables()
                # The last connection that is closed leaves one file.
                site.engine.dispose()
                self._empty = address.database.read_bytes()
            self._scenario.prepare(site)
            return site.entry_ids()

    def _run_child(self, point: int, address: Address, trace: Path) -> int:
        trace.touch()
        run = functools.partial(self._be_child, point, address, trace)
        return status_of_child(run, timeout_s=self._scenario.timeout_s)

    def _be_child(self, point: int, address: Address, trace: Path) -> int:
        site = self._open(address, client_name=address.stream)
        points = self._points(point, trace)
        points.watch(site.handler_engine)
        return self._run_to_the_end(site, points)

    def _run_to_the_end(self, site: Site, points: CrashPoints) -> int:
        try:
            self._scenario.run(site)
        except BaseException as error:
            if not points.is_reached or not self._may_raise(error):
                raise
        return CRASHED if points.is_reached else ENDED

    def _name_end(self, point: int, status: int, trace: Path) -> str:
        last = last_point(trace)
        if status == CRASHED:
            self._seen.points.append(last)
            return f"after point {point} ({last})"
        if status != ENDED:
            self._seen.violations.append(f"the child ended with status {status} after {last}")
        return "after the end"

    def _check_and_recover(self, address: Address, enqueued: list[str]) -> list[str]:
        with Site(address, client_name="look") as site:
            # What the child sent last may still be on its way; the server reads it before it sees the end.
            eventually(lambda: address.stream not in {client["name"] for client in site.client.client_list()})
            left = look(site)
            self._seen.redelivered += len(left.to_redeliver)
            broken = [*broken_by_crash(left, enqueued, site)]
            try:
                self._recover(site, undelivered=len(left.stream) - len(left.delivered))
            except Exception as error:
                broken.append(f"the recovery failed: {error!r}")
            expected = self._scenario.dead_lettered
            broken += broken_by_recovery(look(site), enqueued, site, dead_lettered=expected)
            site.delete_streams()
        return broken

    def _recover(self, site: Site, *, undelivered: int) -> None:
        if self._scenario.run_again is not None:
            self._scenario.run_again(site)
        work = (site.queue_of("operator"), site.handle, site.engine)
        limit = self._scenario.max_deliveries
        drain_stale(
            *work, DrainLimits(max_deliveries=limit, on_error="raise"), min_idle_ms=0, inbox=site.inbox
        )
        if undelivered:
            drain(*work, DrainLimits(max_messages=undelivered, on_error="raise"), inbox=site.inbox)
        if site.outbox is not None:
            OutboxRelay(site.engine, site.client, site.outbox).relay()
