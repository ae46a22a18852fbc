"""Runs the same job on conquiet and on other queues and prints a table; `make peers`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.peers.environment import ENVIRONMENT, programs_in
from benchmarks.peers.systems_list import SYSTEMS, System
from benchmarks.peers.trial import Trial

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / "benchmarks" / "peers.json"


def main() -> int:
    """Run what was asked for and write `peers.json`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="systems whose name contains this")
    parser.add_argument("--patience", type=float, default=90.0, help="seconds without an effect, and it ends")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="made if missing")
    parser.add_argument(
        "--speed",
        action="store_true",
        help="20,000 tasks that do nothing, 32 at once, by 1 and by 10 workers",
    )
    options = parser.parse_args()
    programs = programs_in(options.environment)
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    results: dict[str, Any] = {}
    systems = [system for system in SYSTEMS if (options.only or "").lower() in system.name.lower()]
    if options.speed:
        for system in filter(lambda one: one.is_timed, systems):
            for workers in (1, 10):
                console.print(f"{system.name}, workers {workers}: {_seconds(system, programs, workers)}")
        return 0
    for system in systems:
        console.print(f"{system.name} …")
        results[system.name] = _result(system, programs, options.patience)
        console.print(str(results[system.name]))
    _RESULTS.write_text(json.dumps({"load": os.getloadavg()[0], "systems": results}, indent=2) + "\n")
    console.print(_table(results))
    return 0


def _result(system: System, programs: Path, patience_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        trial = Trial(system=system, programs=programs, directory=Path(one))
        survivors = trial.survivors(patience_s=patience_s)
        rate = Trial(system=system, programs=programs, directory=Path(other)).per_second()
    return asdict(survivors) | {"per_second": round(rate)}


def _seconds(system: System, programs: Path, workers: int) -> str:
    """As streaq's published script has it."""
    with tempfile.TemporaryDirectory() as directory:
        trial = Trial(system=system, programs=programs, directory=Path(directory))
        try:
            return f"{trial.seconds(total=20_000, concurrency=32, workers=workers):.2f} s"
        except BenchmarkError as error:
            return str(error)


def _table(results: dict[str, Any]) -> Table:
    table = Table("system", title="200 tasks, the worker killed with SIGKILL three times")
    for column in ("not done", "done twice", "seconds to the last effect", "no-op tasks/s"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        table.add_row(name, *(str(result[key]) for key in ("missing", "doubled", "seconds", "per_second")))
    return table


if __name__ == "__main__":
    sys.exit(main())
