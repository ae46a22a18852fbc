"""The table for people and `results.json` for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

import conquiet
from benchmarks.bench import Bench
from benchmarks.measurement import Result

RESULTS_FILE = Path(__file__).with_name("results.json")

_VERDICTS = {True: "[green]met[/]", False: "[bold red]MISSED[/]", None: ""}


@dataclass(frozen=True, slots=True)
class PartReport:
    """What one part measured, and why it left out the rest."""

    part: str
    results: list[Result]
    skipped: dict[str, str]


def versions(bench: Bench) -> dict[str, str]:
    """What was measured, and on what."""
    return {
        "conquiet": conquiet.__version__,
        "python": platform.python_version(),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
        "sqlalchemy": version("sqlalchemy"),
        "server": f"{bench.server.binary.name} {bench.server.version}",
    }


def table_of(report: PartReport) -> Table:
    """What has a bar first, then what is only there to be known."""
    table = Table(title=f"{report.part}: the median of the rounds, and the range of their middle half")
    table.add_column("measurement")
    for heading in ("value", "middle half", "better", "bar", "", "ours/s", "raw/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in report.results:
        if result.bar is not None:
            table.add_row(*_cells(result))
    table.add_section()
    for result in report.results:
        if result.bar is None:
            table.add_row(*_cells(result))
    return table


def write_results(reports: Sequence[PartReport], measured_on: Mapping[str, str]) -> None:
    """Replace `results.json` by what this run measured."""
    parts = {
        report.part: {"results": [_as_json(result) for result in report.results], "skipped": report.skipped}
        for report in reports
    }
    document = {"versions": measured_on, "parts": parts}
    RESULTS_FILE.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def value_text(result: Result) -> str:
    """The value with its unit."""
    if result.unit == "ratio":
        return f"{result.value:.2f}"
    return f"{round(result.value, 1):,g} {result.unit}"


def _cells(result: Result) -> tuple[str, ...]:
    sign = "≥" if result.better == "more" else "≤"
    return (
        result.name,
        value_text(result),
        f"{result.lower_quartile:.2f} to {result.upper_quartile:.2f}" if result.rounds > 1 else "",
        result.better,
        "" if result.bar is None else f"{sign} {result.bar:g}",
        _VERDICTS[result.is_met],
        _rate_text(result.ours_per_second),
        _rate_text(result.raw_per_second),
    )


def _rate_text(per_second: float | None) -> str:
    return "" if per_second is None else f"{per_second:,.0f}"


def _as_json(result: Result) -> dict[str, Any]:
    fields = asdict(result).items()
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in fields}
    return {**rounded, "met": result.is_met}
