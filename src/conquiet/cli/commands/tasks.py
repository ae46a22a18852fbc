"""`conquiet tasks`: enqueue, list, show, result, revoke."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.commands.task_letters import find_letter, letter_document
from conquiet.cli.context import CommandContext, YesOption
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.task_apps import AppOptions, QueueName, TaskId, TaskIds
from conquiet.cli.values import duration_option, shown_time
from conquiet.errors import ConquietError
from conquiet.masking import mask

if TYPE_CHECKING:
    from conquiet.tasks import TaskStatus


def enqueue_task(
    context: CommandContext,
    options: AppOptions,
    name: Annotated[str, typer.Argument(help="The task's name, as shop.tasks.bill.", metavar="NAME")],
    arguments: Annotated[
        str, typer.Argument(help="Its arguments: a JSON object.", metavar="[ARGUMENTS]")
    ] = "{}",
    queue: Annotated[str, typer.Option("--queue", "-q", help="The queue.")] = "default",
    priority: Annotated[int, typer.Option("--priority", min=0, max=9, help="9 is first, 0 is last.")] = 5,
    delay: Annotated[int | None, duration_option("--delay", "Not before this time.")] = None,
    expires: Annotated[int | None, duration_option("--expires", "Not after this time.")] = None,
    max_retries: Annotated[
        int | None, typer.Option("--max-retries", min=0, help="Tried again so often; else 3.")
    ] = None,
    unique_for: Annotated[
        int | None, duration_option("--unique-for", "Not a second time with the same arguments.")
    ] = None,
) -> None:
    """Enqueue a task by its name; a worker that knows it validates its arguments.

    Example:  conquiet tasks enqueue shop.tasks.bill '{"order_id": 7}'
    """
    given: dict[str, Any] = {
        "delay_s": None if delay is None else delay / 1000,
        "expires_s": None if expires is None else expires / 1000,
        "unique_for_s": None if unique_for is None else unique_for / 1000,
        "max_retries": max_retries,
    }
    wanted = {option: value for option, value in given.items() if value is not None}
    with options.open(context) as app:
        handle = app.enqueue(name, _parsed(arguments), queue=queue, priority=priority, **wanted)
    document = {"id": handle.id, "name": name, "queue": queue, "is_new": handle.is_new}
    text = "" if handle.is_new else " (enqueued before)"
    context.output.show(document, f"{name} to {queue}: {handle.id}{text}")


def list_tasks(
    context: CommandContext,
    options: AppOptions,
    queue: Annotated[str, typer.Option("--queue", "-q", help="The queue.")] = "default",
    where: Annotated[
        str,
        typer.Option(
            "--where",
            help="queued, in_flight, waiting, delayed, dead_lettered, or ended: the last ones, newest first.",
        ),
    ] = "ended",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    after: Annotated[
        str | None,
        typer.Option("--after", help="The next page: `after` of the one before.", metavar="POSITION"),
    ] = None,
) -> None:
    """Tasks of a queue, by where they are."""
    from conquiet.tasks.control.listing import PLACES

    if where not in PLACES:
        raise UsageError(f"--where must be one of {', '.join(PLACES)}, got {where!r}.")
    with options.open(context) as app:
        page = app.control.tasks(queue, where, limit=limit, after=after)  # type: ignore[arg-type]  # one of them
    documents = [asdict(task) | {"error": task.error and mask(task.error)} for task in page.tasks]

    def print_table() -> None:
        # What its place says beyond the rest: the worker of one in flight, the error of a dead letter.
        last = {"in_flight": "consumer", "dead_lettered": "error"}.get(where)
        rows = [
            (
                each["id"] or f"not a task: letter {each['letter_id']}",
                each["name"],
                each["state"],
                each["priority"],
                shown_time(each["at_ms"]),
                *([str(each[last])[:100]] if last else ()),
            )
            for each in documents
        ]
        columns = ("id", "name", "state", ">priority", "at (UTC)", *([last] if last else ()))
        context.output.print_table(columns, rows)
        if page.after is not None:
            context.output.line(f"More: --after {page.after}")

    document = {"queue": queue, "where": where, "tasks": documents, "after": page.after}
    context.output.show(document, print_table)


def show_task(context: CommandContext, options: AppOptions, task_id: TaskId, queue: QueueName = None) -> None:
    """One task: state, attempt, worker, error, and every step with its time; or the dead letter of one."""
    with options.open(context) as app:
        try:
            document = _status_document(app.handle(task_id, queue).status())
        except ConquietError:
            # A dead letter is kept for longer than the record of its task.
            letter = find_letter(app, task_id, queue)
            if letter is None:
                raise
            document = letter_document(letter)

    def print_status() -> None:
        for name, value in document.items():
            if name not in ("history", "traceback") and value not in (None, ""):
                context.output.line(f"{name + ':':<16}{value}")
        context.output.print_table(
            ("at (UTC)", "state", "worker", ">attempt"),
            [
                (step["at"], step["state"], step["facts"].get("worker"), step["facts"].get("attempt"))
                for step in document["history"]
            ],
        )
        if document["traceback"]:
            context.output.line(document["traceback"])

    context.output.show(document, print_status)


def show_result(
    context: CommandContext,
    options: AppOptions,
    task_id: TaskId,
    queue: QueueName = None,
    timeout: Annotated[
        int | None, duration_option("--timeout", "Wait no longer; else until its end.")
    ] = None,
) -> None:
    """Wait for the end of a task, and print what it returned as JSON; the exit code is 1 if it failed."""
    with options.open(context) as app:
        handle = app.handle(task_id, queue)
        result = handle.result(None if timeout is None else timeout / 1000)
    document = {"id": handle.id, "queue": handle.queue, "name": handle.name, "result": result}
    context.output.show(document, json.dumps(result, ensure_ascii=False))


def revoke_tasks(
    context: CommandContext,
    options: AppOptions,
    task_ids: TaskIds,
    queue: QueueName = None,
    terminate: Annotated[
        bool, typer.Option("--terminate", help="Also interrupt one that runs; else it runs to its end.")
    ] = False,
    yes: YesOption = False,
) -> int:
    """Have tasks not run, nor tried again; the exit code is 1 if one of them had ended."""
    context.output.confirm(f"Revoke {len(task_ids):,} tasks?", is_yes=yes)
    with options.open(context) as app:
        revoked = [app.revoke(task_id, queue, terminate=terminate) for task_id in task_ids]

    def print_table() -> None:
        rows = [
            (one.task_id, one.queue, "yes" if one.is_revoked else "no", one.state_before) for one in revoked
        ]
        context.output.print_table(("id", "queue", "revoked", "was"), rows)

    context.output.show({"tasks": [asdict(one) for one in revoked]}, print_table)
    return ExitCode.DONE if all(one.is_revoked for one in revoked) else ExitCode.FAILED


def _parsed(arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments)
    except ValueError as error:
        raise UsageError(f"The arguments are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError("The arguments must be a JSON object: names and values.")
    return found


def _status_document(status: TaskStatus | None) -> dict[str, Any]:
    assert status is not None  # noqa: S101 -- for mypy: `handle` has found its record
    document = asdict(status)
    document["history"] = [
        {"at": step.at.isoformat(timespec="milliseconds"), "state": step.state, "facts": dict(step.facts)}
        for step in status.history
    ]
    for name in ("error", "traceback"):
        document[name] = document[name] and mask(document[name])
    return document
