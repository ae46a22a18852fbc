"""Every system in one run: how fast it is, and what a killed worker leaves; `make race`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.errors import BenchmarkError, UnavailableError
from benchmarks.peers.environment import ENVIRONMENT, programs_in
from benchmarks.peers.picture import draw
from benchmarks.peers.systems_list import SYSTEMS, System
from benchmarks.peers.trial import Trial

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / "benchmarks" / "race.json"
_PICTURE = _ROOT / "docs" / "race.png"

#: What a task does, by the heading of its column.
WORK = {"no-op": None, "SQLite commit": "sqlite", "PostgreSQL commit": "postgres"}


#: How long a measurement lasts at least, about, and the most tasks of one.
_SECONDS, _MOST = 2.0, 400_000

_EACH, _BATCHES = "conquiet drain, Inbox", "conquiet drain, Inbox, a transaction per 100"


@dataclass(frozen=True, slots=True)
class Bar:
    """How many times as fast one of ours must be as the fastest of these, at what `heading` says."""

    ours: str
    #: Of the queues inside PostgreSQL one, by its name; `None` is the fastest of those on Redis.
    against: str | None
    heading: str
    least: float


_BARS = (
    Bar(_EACH, "pgmq, a transaction each", "PostgreSQL commit", 1.5),
    Bar(_BATCHES, "pgmq, a transaction per 100", "PostgreSQL commit", 2.0),
    # As the others, which have none, without an inbox.
    Bar("conquiet drain", None, "PostgreSQL commit", 2.0),
    Bar("conquiet drain", None, "SQLite commit", 5.0),
    Bar("conquiet drain", None, "no-op", 10.0),
)


@dataclass(frozen=True, slots=True)
class Runs:
    """How each system is timed."""

    programs: Path
    total: int
    patience_s: float
    #: Whether on two cores, one after the other.
    set_ups: tuple[bool, ...]


def main() -> int:
    """Run all, print and keep what was found, draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.race", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help="systems whose name contains this")
    parser.add_argument("--total", type=int, default=2_000, help="tasks of one measurement")
    parser.add_argument("--two-cores", action="store_true", help="not by one worker as it starts, too")
    parser.add_argument("--no-kills", action="store_true", help="speed alone")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds without a task, and it ends")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="made if missing")
    options = parser.parse_args()
    programs, console = programs_in(options.environment), Console(width=150, highlight=False)
    set_ups = (True,) if options.two_cores else (False, True)
    runs = Runs(programs, options.total, options.patience, set_ups)
    results: dict[str, Any] = {}
    for system in SYSTEMS:
        if options.only.lower() in system.name.lower():
            results[system.name] = _speeds(runs, system)
            if not options.no_kills:
                results[system.name] |= _survivors(system, programs, options.patience)
            console.print(f"{system.name}: {results[system.name]}")
    run = {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": _versions(programs),
        "systems": results,
    }
    verdicts = _verdicts(results)
    _RESULTS.write_text(json.dumps(run | {"ratios": verdicts}, indent=2) + "\n")
    for verdict, is_met in verdicts.items():
        console.print(f"{'met   ' if is_met else 'MISSED'} {verdict}")
    if not options.only:
        draw(run, _PICTURE)
    return 0 if all(verdicts.values()) else 1


def _verdicts(results: dict[str, Any]) -> dict[str, bool]:
    """Each bar with its ratio, and whether it is met; those of systems that did not run are left out."""
    peers = [one.name for one in SYSTEMS if not one.is_in_postgres and not one.name.startswith("conquiet")]
    verdicts = {}
    for bar in _BARS:
        others = [bar.against] if bar.against is not None else peers
        rates = {name: results[name][bar.heading] for name in others if bar.heading in results.get(name, {})}
        ours = results.get(bar.ours, {}).get(bar.heading)
        if rates and ours is not None:
            name = max(rates, key=lambda name: rates[name])
            ratio = ours / rates[name]
            text = f"{bar.heading}: {bar.ours} / {name}: {ratio:.2f}, at least {bar.least:g}"
            verdicts[text] = ratio >= bar.least
    return verdicts


def _speeds(runs: Runs, system: System) -> dict[str, Any]:
    """The better of one worker and of two cores, for each kind of work that makes sense."""
    found: dict[str, Any] = {}
    for heading, commits in WORK.items():
        if (system.is_in_postgres and commits == "sqlite") or (system.needs_database and commits is None):
            continue
        rates = []
        for is_best in runs.set_ups:
            try:
                rates.append(_speed(runs, system, commits, is_best=is_best))
            except (BenchmarkError, UnavailableError, subprocess.SubprocessError) as error:
                found.setdefault("errors", []).append(f"{heading}: {str(error)[-300:]}")
        if rates:
            found[heading] = max(rates)
    return found


def _speed(runs: Runs, system: System, commits: str | None, *, is_best: bool) -> int:
    def rate_of(total: int) -> float:
        with tempfile.TemporaryDirectory() as directory:
            trial = Trial(system=system, programs=runs.programs, directory=Path(directory))
            return trial.race(total=total, commits=commits, is_best=is_best, patience_s=runs.patience_s)

    rate = rate_of(runs.total)
    # A quick one gets more: what it does until its first task has ended is not counted.
    total = min(_MOST, round(rate * _SECONDS))
    return round(rate if total < 2 * runs.total else rate_of(total))


def _survivors(system: System, programs: Path, patience_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        trial = Trial(system=system, programs=programs, directory=Path(directory))
        try:
            left = trial.survivors(patience_s=patience_s)
        except (BenchmarkError, UnavailableError, subprocess.SubprocessError) as error:
            return {"errors": [str(error)[-300:]]}
    return {"missing": left.missing, "doubled": left.doubled, "seconds": left.seconds}


def _versions(programs: Path) -> dict[str, str]:
    names = "conquiet celery dramatiq faststream huey rq streaq arq taskiq taskiq-redis"
    names += " pgmq pgqueuer procrastinate dbos redis sqlalchemy psycopg"
    code = "import sys, json; from importlib.metadata import version; "
    code += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    asked = subprocess.check_output([programs / "python", "-c", code, *names.split()])
    found: dict[str, str] = json.loads(asked)
    return found


if __name__ == "__main__":
    sys.exit(main())
