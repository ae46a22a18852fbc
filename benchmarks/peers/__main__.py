"""Runs the same job on conquiet and on other queues and prints a table; `make peers`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.systems_list import SYSTEMS, System
from benchmarks.peers.trial import Trial

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / "benchmarks" / "peers.json"


def main() -> int:
    """Run what was asked for and write `peers.json`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="systems whose name contains this")
    parser.add_argument("--patience", type=float, default=90.0, help="seconds without an effect, and it ends")
    parser.add_argument("--environment", type=Path, default=_ROOT / ".venv-peers", help="made if missing")
    options = parser.parse_args()
    programs = _programs(options.environment)
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    results: dict[str, Any] = {}
    for system in SYSTEMS:
        if (options.only or "").lower() in system.name.lower():
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


def _programs(environment: Path) -> Path:
    programs = environment / "bin"
    if not (programs / "python").exists():
        uv = Path(sys.executable).parent / "uv"
        requirements = Path(__file__).parent / "requirements.txt"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", programs / "python"]
        subprocess.run([*install, "--requirement", requirements, "--editable", _ROOT], check=True)
    return programs


def _table(results: dict[str, Any]) -> Table:
    table = Table("system", title="200 tasks, the worker killed with SIGKILL three times")
    for column in ("not done", "done twice", "seconds to the last effect", "no-op tasks/s"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        table.add_row(name, *(str(result[key]) for key in ("missing", "doubled", "seconds", "per_second")))
    return table


if __name__ == "__main__":
    sys.exit(main())
