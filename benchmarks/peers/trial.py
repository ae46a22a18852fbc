"""One trial: a private server, tasks, and workers that are killed or timed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.peers.effects_table import EffectsTable, effects_table
from benchmarks.peers.systems.effects import MOMENT
from benchmarks.peers.systems_list import System
from conquiet import EmbeddedServer

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """What became of the tasks."""

    total: int
    kills: int
    #: Tasks without an effect when nobody wanted to wait any longer.
    missing: int
    #: Tasks with more than one effect.
    doubled: int
    #: From the last start of a worker to the last effect.
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A system in the programs of one environment, in a directory of its own."""

    system: System
    programs: Path
    directory: Path

    def survivors(self, *, total: int = 200, kills: int = 3, patience_s: float = 90.0) -> Survivors:
        """Kill the worker each time a few more tasks are done; then let one work until nothing moves."""
        kind = "postgres" if self.system.is_in_postgres else "sqlite"
        with effects_table(kind, self.directory) as database, EmbeddedServer() as server:
            environment = self._environment(server.url) | {"PEERS_DATABASE": database.plain_url}
            environment |= {"PEERS_WRITES": "1"}
            self._enqueue(total, environment)
            for kill in range(1, kills + 1):
                with self._worker(environment):
                    _watch(database, total * kill // (kills + 2), patience_s)
            begun = time.monotonic()
            with self._worker(environment):
                moved = _watch(database, total, patience_s)
                # One that comes once more comes late.
                time.sleep(2)
            effects = database.counts()
        if not effects:
            raise BenchmarkError(f"{self.system.name}: nothing was done at all; {self._log()}")
        doubled = sum(count > 1 for count in effects.values())
        return Survivors(
            total=total,
            kills=kills,
            missing=total - len(effects),
            doubled=doubled,
            seconds=round(moved - begun, 1),
        )

    def per_second(self, *, total: int = 2_000, patience_s: float = 180.0) -> float:
        """Tasks that do nothing, first to last, on a worker of one process; results are kept."""
        times = self.directory / "times"
        with EmbeddedServer() as server:
            environment = self._environment(server.url)
            environment |= {"PEERS_TIMES": str(times), "PEERS_RESULTS": "1"}
            self._enqueue(total, environment)
            end = time.monotonic() + patience_s
            with self._worker(environment):
                while len(moments := _moments(times)) < total:
                    if time.monotonic() > end:
                        raise BenchmarkError(f"{self.system.name}: not done in {patience_s} s; {self._log()}")
                    time.sleep(0.1)
        return (len(moments) - 1) / (max(moments) - min(moments))

    def race(self, *, total: int, commits: str | None, is_best: bool, patience_s: float = 120.0) -> float:
        """Tasks a second, first to last, each with a row in `commits`, or with nothing at all.

        Args:
            commits: the kind of the database, `None` for tasks that do nothing.
            is_best: with two cores, as the system's documentation says; else by one worker as it starts.
        """
        times, kind = self.directory / "times", "postgres" if self.system.is_in_postgres else commits
        with ExitStack() as stack:
            environment = self._environment(stack.enter_context(EmbeddedServer()).url)
            environment |= {"PEERS_TIMES": str(times), "PEERS_WRITES": str(int(commits is not None))}
            database = None
            if kind is not None:
                database = stack.enter_context(effects_table(kind, self.directory))
                environment |= {"PEERS_DATABASE": database.plain_url}
            if is_best:
                environment |= {"PEERS_BEST": "1"}
            self._enqueue(total, environment)
            options = self.system.best if is_best else ()
            for number in range(2 if is_best and not options else 1):
                own = environment | {"PEERS_WORKER": str(number)}
                stack.enter_context(self._worker(own, options))
            moved, done = time.monotonic(), 0
            while len(moments := _moments(times)) < total and time.monotonic() - moved < patience_s:
                if len(moments) > done:
                    moved, done = time.monotonic(), len(moments)
                time.sleep(0.1)
            if commits is not None and database is not None and len(moments) >= total:
                # The row of the last one may come after its time.
                _watch(database, total, 5.0)
                if (found := len(database.counts())) < total:
                    raise BenchmarkError(f"{self.system.name}: {found} rows of {total}")
        if len(moments) < max(2, total // 20):
            raise BenchmarkError(
                f"{self.system.name}: {len(moments)} of {total} in {patience_s:.0f} s; {self._log()}"
            )
        return (len(moments) - 1) / (max(moments) - min(moments))

    def seconds(self, *, total: int, concurrency: int, workers: int, patience_s: float = 600.0) -> float:
        """How long workers with this concurrency take for tasks that do nothing; results are kept."""
        times = self.directory / "times"
        with EmbeddedServer() as server, ExitStack() as started:
            environment = self._environment(server.url)
            environment |= {"PEERS_TIMES": str(times), "PEERS_RESULTS": "1"}
            environment |= {"PEERS_CONCURRENCY": str(concurrency)}
            self._enqueue(total, environment)
            options = [part.format(n=concurrency) for part in self.system.concurrent]
            begun = time.monotonic()
            for _ in range(workers):
                started.enter_context(self._worker(environment, options))
            while len(moments := _moments(times)) < total:
                if time.monotonic() - begun > patience_s:
                    raise BenchmarkError(f"{self.system.name}: not done in {patience_s} s; {self._log()}")
                time.sleep(0.1)
        return max(moments) - min(moments)

    def _environment(self, url: str) -> dict[str, str]:
        path = {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(_ROOT)}
        return os.environ | path | {"PEERS_REDIS_URL": url} | self.system.environment

    def _enqueue(self, total: int, environment: dict[str, str]) -> None:
        adding = [str(self.programs / "python"), "-m", self.system.module, *self.system.kind, str(total)]
        with (self.directory / "worker.log").open("ab") as log:
            subprocess.run(
                adding,
                env=environment,
                cwd=self.directory,
                check=True,
                timeout=600,
                stdout=log,
                stderr=log,
            )

    @contextmanager
    def _worker(self, environment: dict[str, str], options: Sequence[str] = ()) -> Iterator[None]:
        """A worker with all its processes, killed at the end."""
        program, *arguments = (part.format(url=environment["PEERS_REDIS_URL"]) for part in self.system.worker)
        with (self.directory / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.programs / program), *arguments, *options],
                env=environment,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                yield
                if process.poll() is not None:
                    raise BenchmarkError(f"{self.system.name}: the worker ended by itself; {self._log()}")
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _log(self) -> str:
        return (self.directory / "worker.log").read_text(errors="replace")[-1_000:]


def _watch(database: EffectsTable, wanted: int, patience_s: float) -> float:
    """Wait until so many tasks are done, or nothing moves any more; returns when the last one was."""
    moved, done = time.monotonic(), -1
    while time.monotonic() - moved < patience_s:
        now = sum((effects := database.counts()).values())
        if now != done:
            moved, done = time.monotonic(), now
        if len(effects) >= wanted:
            break
        time.sleep(0.01)
    return moved


def _moments(times: Path) -> list[float]:
    return [moment for (moment,) in MOMENT.iter_unpack(times.read_bytes())] if times.exists() else []
