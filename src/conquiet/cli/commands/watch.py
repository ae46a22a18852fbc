"""`conquiet watch`: backlog, rates and lag as they change."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import ExitCode
from conquiet.cli.signals import Stopping
from conquiet.cli.values import Names, shown_age, shown_lag

if TYPE_CHECKING:
    from rich.live import Live

    from conquiet.operations import Rates, Sample

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


def watch(
    context: CommandContext,
    names: Names = None,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two samples.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One sample, then end; it has no rates.")] = False,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="End after so many samples.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Also keep samples in Redis, for the charts of `conquiet page`.")
    ] = False,
) -> int:
    """Watch backlogs live on a terminal; elsewhere one line for each group and sample. Ctrl-C ends it."""
    from conquiet.operations import SampleRing, rates_between, take_samples

    limit = 1 if once else samples
    live: Live | None = None
    earlier: dict[tuple[str, str | None], Sample] = {}
    with Stopping() as stopping, context.client() as client, ExitStack() as stack:
        if sys.stdout.isatty() and not context.output.is_json and not once:
            from rich.live import Live

            live = stack.enter_context(Live(console=context.output.console(), auto_refresh=False))
        done = 0
        while not stopping.is_stopping():
            taken = {(sample.topic, sample.group): sample for sample in take_samples(client, names or None)}
            if record:
                SampleRing(client).write(taken.values())
            rows = [(sample, rates_between(earlier.get(key), sample)) for key, sample in taken.items()]
            cells = [(one.topic, one.group or "no group", *_figures(one, rates)) for one, rates in rows]
            if live is not None:
                columns = ("topic", "group", *(f">{column}" for column in _COLUMNS))
                live.update(context.output.table(columns, cells), refresh=True)
            else:
                for (sample, rates), (topic, group, *figures) in zip(rows, cells, strict=True):
                    shown = ", ".join(map(" ".join, zip(_COLUMNS, figures, strict=True)))
                    document = {**asdict(sample), **asdict(rates)}
                    context.output.show(document, f"{topic}/{group}: {shown}")
            earlier, done = taken, done + 1
            if done == limit or stopping.wait(interval):
                break
    return ExitCode.DONE


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
