"""`conquiet queues`: the queues of tasks, and how many are where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import UnknownQueueError
from conquiet.cli.output import Output
from conquiet.cli.task_apps import AppOptions
from conquiet.cli.values import shown_age

if TYPE_CHECKING:
    from conquiet.tasks import TaskApp


def list_queues(
    context: CommandContext,
    options: AppOptions,
    names: Annotated[
        list[str] | None, typer.Argument(help="Queues; without any, all.", metavar="[QUEUE]...")
    ] = None,
) -> None:
    """Tasks of each queue: queued, in flight, waiting, delayed, dead letters; and whether it is paused."""
    with options.open(context) as app:
        known = app.known_queues() if names else app.queues()
        for name in names or ():
            if name not in known:
                raise UnknownQueueError(name, app.namespace)
        documents = queue_documents(app, names or known)

    context.output.show({"queues": documents}, lambda: print_queues(context.output, documents))


def queue_documents(app: TaskApp, names: Iterable[str]) -> list[dict[str, Any]]:
    """The figures of queues, in total and by priority."""
    totals = ("queued", "in_flight", "waiting", "oldest_age_ms")
    return [
        asdict(stats) | {name: getattr(stats, name) for name in totals}
        for stats in map(app.control.queue, names)
    ]


def print_queues(output: Output, documents: Iterable[Mapping[str, Any]]) -> None:
    """A line for each queue."""
    columns = ("queued", "in_flight", "waiting", "delayed", "dead_letters", "consumers")
    rows = [
        (
            each["queue"] + (" (paused)" if each["is_paused"] else ""),
            *(each[column] for column in columns),
            shown_age(each["oldest_age_ms"]),
        )
        for each in documents
    ]
    figures = (f">{column.replace('_', ' ')}" for column in columns)
    output.print_table(("queue", *figures, ">oldest"), rows)
