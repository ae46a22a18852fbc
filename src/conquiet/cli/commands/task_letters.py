"""`conquiet tasks retry` and `purge`: the tasks of a queue that are dead letters; and `purge-payloads`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.context import CommandContext, DryRunOption, YesOption
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.task_apps import AppOptions
from conquiet.cli.values import duration_option, parse_time
from conquiet.masking import mask

if TYPE_CHECKING:
    from conquiet.tasks import TaskApp
    from conquiet.tasks.control import TaskLetter

_LetterIds = Annotated[
    list[str] | None,
    typer.Argument(help="Ids of tasks that are dead letters, or of letters.", metavar="[ID]..."),
]
_Queue = Annotated[str, typer.Option("--queue", "-q", help="The queue.")]

_PAYLOADS_KEPT_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class LetterOptions:
    """Which dead letters, how many, and how fast."""

    error_type: Annotated[
        str | None, typer.Option("--error-type", help="With --all: of this exception, as NoStock.")
    ] = None
    task: Annotated[str | None, typer.Option("--task", help="With --all: tasks of this name.")] = None
    since: Annotated[
        int | None,
        typer.Option(
            "--since",
            help="With --all: dead-lettered then or later (UTC).",
            metavar="TIME",
            parser=parse_time,
        ),
    ] = None
    until: Annotated[
        int | None,
        typer.Option(
            "--until", help="With --all: dead-lettered then or before.", metavar="TIME", parser=parse_time
        ),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="With --all: at most so many.")] = None
    per_second: Annotated[
        float | None, typer.Option("--per-second", min=0.001, help="With --all: not faster than this.")
    ] = None

    def chosen(self) -> dict[str, Any]:
        """Those that were given."""
        names = {"since": "since_ms", "until": "until_ms"}
        return {names.get(name, name): value for name, value in asdict(self).items() if value is not None}


def retry_tasks(
    context: CommandContext,
    options: AppOptions,
    which: LetterOptions,
    task_ids: _LetterIds = None,
    queue: _Queue = "default",
    is_all: Annotated[
        bool, typer.Option("--all", help="Every dead letter, or every one that the filters match.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> int:
    """Enqueue the tasks of dead letters once more, each with an id of its own, attempts counted from 0.

    The exit code is 1 if a letter of --all could not be retried.
    """
    chosen = which.chosen()
    if bool(task_ids) == is_all or (task_ids and (chosen or dry_run)):
        raise UsageError("Give ids, or --all with filters if you like.")
    with options.open(context) as app:
        if task_ids:
            retried = [(task_id, app.control.retry(task_id, queue=queue)) for task_id in task_ids]
            refused: Sequence[tuple[str, str]] = ()
        else:
            report = context.confirmed(
                lambda is_dry_run: app.control.retry_all(queue=queue, dry_run=is_dry_run, **chosen),
                lambda report: f"Retry {len(report.retried):,} dead letters of queue {queue!r}?",
                yes=yes,
                dry_run=dry_run,
            )
            retried, refused = list(report.retried), report.refused

    def print_table() -> None:
        context.output.print_table(
            ("id", "new id"), [(old, new or "would be retried") for old, new in retried]
        )
        for letter_id, reason in refused:
            context.output.line(f"letter {letter_id} stays: {reason}")

    document = {
        "queue": queue,
        "tasks": [{"id": old, "new_id": new or None} for old, new in retried],
        "refused": [{"letter_id": letter_id, "reason": mask(reason)} for letter_id, reason in refused],
        "is_dry_run": dry_run,
    }
    context.output.show(document, print_table)
    return ExitCode.FAILED if refused else ExitCode.DONE


def purge_tasks(
    context: CommandContext,
    options: AppOptions,
    task_ids: _LetterIds = None,
    queue: _Queue = "default",
    older_than: Annotated[int | None, duration_option("--older-than", "Letters older than this.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every letter.")] = False,
    until: Annotated[
        int | None,
        typer.Option(
            "--until", help="With --all: dead-lettered then or before.", metavar="TIME", parser=parse_time
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete dead letters for good, by id, by age, or all; with --until all that were there at that time."""
    if sum((bool(task_ids), older_than is not None, is_all)) != 1 or (until is not None and not is_all):
        raise UsageError("Give ids, --older-than, or --all, which may have --until.")
    which: dict[str, Any] = {"names": task_ids}
    if not task_ids:
        which = {"older_than_ms": older_than or 0} if until is None else {"until_ms": until}
    with options.open(context) as app:
        count = context.confirmed(
            lambda is_dry_run: app.control.purge(queue=queue, dry_run=is_dry_run, **which),
            lambda count: f"Delete {count:,} dead letters of queue {queue!r} for good?",
            yes=yes,
            dry_run=dry_run,
        )
    verb = "Would purge" if dry_run else "Purged"
    document = {"queue": queue, "purged": count, "is_dry_run": dry_run}
    context.output.show(document, f"{verb} {count:,} dead letters of queue {queue!r}.")


def purge_payloads(
    context: CommandContext,
    options: AppOptions,
    queue: _Queue = "default",
    older_than: Annotated[
        int | None, duration_option("--older-than", "Stored so long ago, an hour or more; else 1d.")
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete content from the payload store of --app that no task, result or dead letter needs.

    The exit code is 1 if some of it could not be deleted; the rest is.
    """
    age_ms = _PAYLOADS_KEPT_MS if older_than is None else older_than
    with options.open(context) as app:
        if app.payload_store is None:
            raise UsageError("Give --app an app with a payload_store.")
        count = context.confirmed(
            lambda is_dry_run: app.control.purge_payloads(
                queue=queue, older_than_ms=age_ms, dry_run=is_dry_run
            ),
            lambda count: f"Delete {count:,} stored payloads of queue {queue!r} for good?",
            yes=yes,
            dry_run=dry_run,
        )
    verb = "Would purge" if dry_run else "Purged"
    document = {"queue": queue, "purged": count, "is_dry_run": dry_run}
    context.output.show(document, f"{verb} {count:,} stored payloads of queue {queue!r}.")


def find_letter(app: TaskApp, name: str, queue: str | None) -> TaskLetter | None:
    """The dead letter of a task; without its queue, every queue is asked."""
    for one in [queue] if queue is not None else app.queues():
        letter = app.control.letter(name, queue=one)
        if letter is not None:
            return letter
    return None


def letter_document(letter: TaskLetter) -> dict[str, Any]:
    """As of a status; what a letter has beyond it at the end."""
    at_ms = int(letter.id.partition("-")[0])
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    attempt = max(0, (letter.attempts or 1) - 1)
    facts = {"worker": letter.worker, "attempt": attempt}
    return {
        "id": letter.task_id,
        "queue": letter.queue,
        "name": letter.name,
        "state": "dead_lettered",
        "attempt": attempt,
        "worker": letter.worker,
        "error": mask(f"{letter.error_type}: {letter.error}"),
        "traceback": mask(letter.traceback),
        "result": None,
        "stored": None,
        "progress": None,
        "progress_text": "",
        "history": [{"at": at, "state": "dead_lettered", "facts": facts}],
        "letter_id": letter.id,
        "args": dict(letter.args),
    }
