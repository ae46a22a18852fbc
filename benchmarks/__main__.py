"""Runs the parts, prints their tables, writes `results.json`; exits with 1 if a bar is missed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.bench import Bench
from benchmarks.errors import UnavailableError
from benchmarks.parts import PARTS, measurements_of
from benchmarks.report import RESULTS_FILE, PartReport, table_of, value_text, versions, write_results

#: Where nothing says how wide the output is, as in a CI log.
_WIDTH = 140


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for and return the exit code."""
    parts = _parts(arguments)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    _warn_if_busy(console)
    with Bench() as bench:
        reports = [_run(part, bench, console) for part in parts]
        write_results(reports, versions(bench))
    for report in reports:
        console.print(table_of(report))
    missed = [result.name for report in reports for result in report.results if result.is_met is False]
    console.print(f"written: {RESULTS_FILE}")
    if missed:
        console.print(f"[bold red]{len(missed)} missed:[/] {'; '.join(missed)}")
    return 1 if missed else 0


def _parts(arguments: Sequence[str] | None) -> list[str]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    # The environment variable is for `make bench ONLY=core`.
    only_default = os.environ.get("ONLY") or None
    parser.add_argument("--only", metavar="PART", default=only_default, help=f"one of {', '.join(PARTS)}")
    only = parser.parse_args(arguments).only
    if only is not None and only not in PARTS:
        parser.error(f"there is no part {only!r}, only {', '.join(PARTS)}")
    return list(PARTS) if only is None else [only]


def _warn_if_busy(console: Console) -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        console.print(
            f"[yellow]busy machine:[/] load {load:.1f} on {cores} cores, so expect missed bars by chance"
        )


def _run(part: str, bench: Bench, console: Console) -> PartReport:
    measurements = measurements_of(part)
    report = PartReport(part, [], {})
    with _progress(console) as progress:
        task = progress.add_task(part, total=sum(measurement.rounds for measurement in measurements))
        for measurement in measurements:
            progress.update(task, description=measurement.name)
            try:
                result = measurement.measure(bench, lambda: progress.advance(task))
            except UnavailableError as error:
                report.skipped[measurement.name] = str(error)
                console.print(f"{measurement.name}: skipped, {error}")
                progress.advance(task, measurement.rounds)
            else:
                report.results.append(result)
                console.print(f"{measurement.name}: {value_text(result)}")
    return report


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


if __name__ == "__main__":
    sys.exit(main())
