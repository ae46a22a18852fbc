"""`conquiet watch`: backlog, rates and lag as they change."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.exits import ExitCode
from conquiet.cli.output import shown_age, shown_lag
from conquiet.cli.site import Site, command
from conquiet.cli.stopping import Stopping

if TYPE_CHECKING:
    from rich.table import Table

    from conquiet.operations import Rates, Sample

_Row = tuple["Sample", "Rates"]
_COLUMNS = (
    "lag",
    "pending",
    "in/s",
    "handled/s",
    "drained in",
    "oldest waiting",
    "oldest pending",
    "length",
    "dead letters",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "watch")(watch)


def watch(
    site: Site,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Topics or plain streams; without any, every topic.", metavar="[NAME]..."),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One look, then end; it has no rates.")] = False,
    looks: Annotated[int | None, typer.Option("--looks", min=1, help="End after so many looks.")] = None,
) -> int:
    """Watch backlogs live on a terminal; elsewhere one line for each group and look. Ctrl-C ends it."""
    limit = 1 if once else looks
    with Stopping() as stopping, site.client() as client:
        view = _Screen(site) if sys.stdout.isatty() and not site.output.is_json and not once else _Lines(site)
        with view:
            earlier: dict[tuple[str, str | None], Sample] = {}
            done = 0
            while not stopping.is_stopping():
                rows, earlier = _look(client, names, earlier)
                view.show(rows)
                done += 1
                if done == limit or stopping.wait(interval):
                    break
    return ExitCode.DONE


def _look(
    client: Any, names: list[str] | None, earlier: dict[tuple[str, str | None], Sample]
) -> tuple[list[_Row], dict[tuple[str, str | None], Sample]]:
    from conquiet.operations import rates_between, take_samples

    samples = take_samples(client, names or None)
    rows = [(one, rates_between(earlier.get((one.topic, one.group)), one)) for one in samples]
    return rows, {(one.topic, one.group): one for one in samples}


class _Lines:
    """One line for each group and look."""

    def __init__(self, site: Site) -> None:
        self._output = site.output

    def show(self, rows: list[_Row]) -> None:
        for sample, rates in rows:
            document = {**asdict(sample), **asdict(rates)}
            self._output.show(document, partial(self._output.say, _line(sample, rates)))

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


class _Screen:
    """A table that is drawn anew."""

    def __init__(self, site: Site) -> None:
        from rich.live import Live

        self._live = Live(console=site.output.console(), auto_refresh=False)

    def show(self, rows: list[_Row]) -> None:
        self._live.update(_table(rows), refresh=True)

    def __enter__(self) -> _Screen:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()


def _table(rows: list[_Row]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("topic", "group"):
        table.add_column(column)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for sample, rates in rows:
        cells = (sample.topic, sample.group or "no group", *_figures(sample, rates))
        table.add_row(*map(Text, cells))
    return table


def _line(sample: Sample, rates: Rates) -> str:
    figures = zip(_COLUMNS, _figures(sample, rates), strict=True)
    return f"{sample.topic}/{sample.group or 'no group'}: " + ", ".join(
        f"{name} {figure}" for name, figure in figures
    )


def _figures(sample: Sample, rates: Rates) -> tuple[str, ...]:
    left = None if rates.seconds_to_drain is None else round(rates.seconds_to_drain * 1000)
    return (
        "-" if sample.group is None else shown_lag(sample.lag),
        f"{sample.pending:,}",
        _rate(rates.enqueued_per_s),
        _rate(rates.handled_per_s),
        shown_age(left),
        shown_age(sample.oldest_undelivered_age_ms),
        shown_age(sample.oldest_pending_age_ms),
        f"{sample.length:,}",
        f"{sample.dead_letters:,}",
    )


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else f"{per_second:,.1f}"
