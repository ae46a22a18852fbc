"""`conquiet workers`: list, ping, pause and resume queues, change rates, stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from conquiet.cli.context import CommandContext, YesOption
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.task_apps import AppOptions, QueueArgument, WorkerNames
from conquiet.cli.values import duration_option

_Timeout = Annotated[int | None, duration_option("--timeout", "Wait for answers for so long; else 2s.")]
_TIMEOUT_MS = 2_000


def list_workers(context: CommandContext, options: AppOptions) -> None:
    """The processes of workers that are alive, by their heartbeats."""
    with options.open(context) as app:
        documents = [asdict(worker) for worker in app.control.workers()]

    def print_table() -> None:
        rows = [
            (
                each["name"],
                each["host"],
                str(each["pid"]),
                ", ".join(each["queues"]),
                each["pool"],
                each["concurrency"],
                each["started_at"],
            )
            for each in documents
        ]
        columns = ("worker", "host", ">process", "queues", "pool", ">concurrency", "started (UTC)")
        context.output.print_table(columns, rows)

    context.output.show({"workers": documents}, print_table)


def ping_workers(
    context: CommandContext, options: AppOptions, names: WorkerNames = None, timeout: _Timeout = None
) -> int:
    """Ask workers whether they answer, and what they run; the exit code is 1 if one does not."""
    with options.open(context) as app:
        answers = app.control.inspect(names, timeout_s=(timeout or _TIMEOUT_MS) / 1000)
    return _show(context, answers, {})


def pause_queue(
    context: CommandContext, options: AppOptions, queue: QueueArgument, timeout: _Timeout = None
) -> int:
    """Begin no further task of a queue, in any worker, until it is resumed; tasks that run go on."""
    with options.open(context) as app:
        is_used = queue in app.queues()
        answers = app.control.pause(queue, timeout_s=(timeout or _TIMEOUT_MS) / 1000)
    return _show(context, answers, {"queue": queue, "is_paused": True}, is_used=is_used)


def resume_queue(
    context: CommandContext, options: AppOptions, queue: QueueArgument, timeout: _Timeout = None
) -> int:
    """Begin tasks of a paused queue again."""
    with options.open(context) as app:
        is_used = queue in app.queues()
        answers = app.control.resume(queue, timeout_s=(timeout or _TIMEOUT_MS) / 1000)
    return _show(context, answers, {"queue": queue, "is_paused": False}, is_used=is_used)


def set_rate(
    context: CommandContext,
    options: AppOptions,
    task: Annotated[str, typer.Argument(help="The task's name.", metavar="TASK")],
    rate: Annotated[
        str,
        typer.Argument(help="As 10/s, 100/m or 5/h; none, or declared for that of its code.", metavar="RATE"),
    ],
    queue: Annotated[str, typer.Option("--queue", "-q", help="In this queue.")] = "default",
    timeout: _Timeout = None,
) -> int:
    """Change how often a task may begin, in all workers and those that start later."""
    with options.open(context) as app:
        is_used = queue in app.queues()
        if rate == "declared":
            answers = app.control.reset_rate(task, queue=queue, timeout_s=(timeout or _TIMEOUT_MS) / 1000)
        else:
            wanted = None if rate == "none" else rate
            answers = app.control.set_rate(
                task, wanted, queue=queue, timeout_s=(timeout or _TIMEOUT_MS) / 1000
            )
    return _show(context, answers, {"task": task, "queue": queue, "rate": rate}, is_used=is_used)


def stop_workers(
    context: CommandContext,
    options: AppOptions,
    names: WorkerNames = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every worker.")] = False,
    hard: Annotated[
        bool, typer.Option("--hard", help="Interrupt tasks that run, and hand them back.")
    ] = False,
    timeout: _Timeout = None,
    yes: YesOption = False,
) -> int:
    """Have workers end: after the tasks that run, or at once with --hard; the rest is handed back."""
    if bool(names) == is_all:
        raise UsageError("Give names of workers, or --all.")
    with options.open(context) as app:
        asked = names or [worker.name for worker in app.control.workers() if worker.parent is None]
        context.output.confirm(f"Stop {len(asked):,} workers?", is_yes=yes)
        answers = app.control.shutdown(asked, hard=hard, timeout_s=(timeout or _TIMEOUT_MS) / 1000)
    return _show(context, answers, {"is_hard": hard})


def _show(
    context: CommandContext,
    answers: Mapping[str, dict[str, Any] | None],
    facts: Mapping[str, Any],
    *,
    is_used: bool = True,
) -> int:
    documents = [
        {"name": name, "has_answered": answer is not None, "answer": answer}
        for name, answer in sorted(answers.items())
    ]

    def print_table() -> None:
        rows = []
        for name, answer in sorted(answers.items()):
            parts = [
                f"{len(value)} {what}" if isinstance(value, list) else f"{what} {value}"
                for what, value in (answer or {}).items()
            ]
            rows.append((name, "no answer" if answer is None else ", ".join(parts) or "ok"))
        context.output.print_table(("worker", "answer"), rows)
        if not is_used:
            known = "`conquiet queues` lists those that were"
            context.output.line(f"Nothing was ever enqueued to queue {facts['queue']!r}: {known}.")

    context.output.show({**facts, "workers": documents}, print_table)
    return ExitCode.FAILED if None in answers.values() else ExitCode.DONE
