"""`conquiet dlq`: list, show, replay, purge and trim dead letters."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.context import CommandContext, DryRunOption, YesOption
from conquiet.cli.documents import letter_document
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.names import dead_letters
from conquiet.cli.values import Name, duration_option, parse_time, shown_time

if TYPE_CHECKING:
    from conquiet.mq import ReplayReport

_ErrorType = Annotated[str | None, typer.Option("--error-type", help="Of this exception, as NoStock.")]
_OfGroup = Annotated[str | None, typer.Option("--group", "-g", help="Given up by this group.")]
_Since = Annotated[
    int | None,
    typer.Option("--since", help="Dead-lettered then or later (UTC).", metavar="TIME", parser=parse_time),
]
_Until = Annotated[
    int | None,
    typer.Option("--until", help="Dead-lettered then or before.", metavar="TIME", parser=parse_time),
]
_Ids = Annotated[list[str] | None, typer.Argument(help="Ids of letters.", metavar="[ID]...")]


def list_letters(
    context: CommandContext,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.")] = 50,
    after: Annotated[str | None, typer.Option("--after", help="Where the last page ended.")] = None,
    error_type: _ErrorType = None,
    group: _OfGroup = None,
    since: _Since = None,
    until: _Until = None,
) -> None:
    """The dead letters of a topic or stream, oldest first."""
    which = _chosen(error_type=error_type, group=group, since_ms=since, until_ms=until)
    with dead_letters(context, name) as letters:
        page, total = letters.list(limit=limit, after=after, **which), letters.count()

    def print_table() -> None:
        rows = [
            (
                letter.id,
                shown_time(letter.dead_lettered_at_ms),
                letter.group,
                letter.attempts,
                letter.key,
                f"{letter.error_type}: {document['error_message']}"[:100],
            )
            for letter, document in zip(page.letters, documents, strict=True)
        ]
        context.output.print_table(("id", "since (UTC)", "group", ">attempts", "key", "error"), rows)
        more = f"; more: --after {page.after}" if page.after else ""
        context.output.line(f"{len(rows):,} of {total:,} dead letters{more}")

    documents = [letter_document(letter) for letter in page.letters]
    context.output.show(
        {"topic": name, "count": total, "letters": documents, "after": page.after}, print_table
    )


def show_letter(
    context: CommandContext,
    name: Name,
    letter_id: Annotated[str, typer.Argument(help="The letter's id.", metavar="ID")],
) -> None:
    """One dead letter in full: payload, headers, every error, traceback."""
    with dead_letters(context, name) as letters:
        document = letter_document(letters.show(letter_id))

    def print_letter() -> None:
        for field, value in document.items():
            if field not in ("payload", "traceback") and value not in (None, "", {}):
                shown = f"{value}  {shown_time(value)} UTC" if field.endswith("_at_ms") else value
                context.output.line(f"{field + ':':<24}{shown}")
        context.output.line(f"payload:\n{json.dumps(document['payload'], indent=2, ensure_ascii=False)}")
        if document["traceback"]:
            context.output.line(f"traceback:\n{document['traceback']}")

    context.output.show(document, print_letter)


def replay_letters(
    context: CommandContext,
    name: Name,
    letter_ids: _Ids = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Every letter, or every one that the filters match.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", help="With --all: at most so many.")] = None,
    per_second: Annotated[float | None, typer.Option("--per-second", help="Not faster than this.")] = None,
    to_all_groups: Annotated[
        bool, typer.Option("--to-all-groups", help="For every group, not only the one that gave it up.")
    ] = False,
    error_type: _ErrorType = None,
    group: _OfGroup = None,
    since: _Since = None,
    until: _Until = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> int:
    """Give messages once more to the group that gave them up, each letter once.

    Of a plain stream the entry itself is pending again; one that was trimmed needs --to-all-groups. The exit
    code is 1 if a letter could not be replayed.
    """
    which = _chosen(error_type=error_type, group=group, since_ms=since, until_ms=until, limit=limit)
    if bool(letter_ids) == is_all or (letter_ids and which):
        raise UsageError("Give ids, or --all with filters if you like.")

    def replay(is_dry_run: bool) -> ReplayReport:
        how: dict[str, Any] = {"per_second": per_second, "to_all_groups": to_all_groups}
        if letter_ids:
            return letters.replay_many(letter_ids, dry_run=is_dry_run, **how)
        return letters.replay_all(dry_run=is_dry_run, **how, **which)

    with dead_letters(context, name) as letters:
        report = context.confirmed(
            replay,
            lambda report: f"Replay {report.replayed:,} dead letters of {name!r}?",
            yes=yes,
            dry_run=dry_run,
        )
    verb = "Would replay" if dry_run else "Replayed"
    others = f"{len(report.not_found):,} not found, {len(report.refused):,} cannot be replayed"
    context.output.show({"topic": name, **asdict(report)}, f"{verb} {report.replayed:,}; {others}.")
    return ExitCode.FAILED if report.refused or (letter_ids and report.not_found) else ExitCode.DONE


def purge_letters(
    context: CommandContext,
    name: Name,
    letter_ids: _Ids = None,
    older_than: Annotated[int | None, duration_option("--older-than", "Letters older than this.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every letter.")] = False,
    until: _Until = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete letters for good, by id, by age, or all; with --until all that were there at that time."""
    if sum((bool(letter_ids), older_than is not None, is_all)) != 1 or (until is not None and not is_all):
        raise UsageError("Give ids, --older-than, or --all, which may have --until.")
    which: dict[str, Any] = {"letter_ids": letter_ids}
    if not letter_ids:
        which = {"older_than_ms": older_than or 0} if until is None else {"until_ms": until}
    with dead_letters(context, name) as letters:
        count = context.confirmed(
            lambda is_dry_run: letters.purge(dry_run=is_dry_run, **which),
            lambda count: f"Delete {count:,} dead letters of {name!r} for good?",
            yes=yes,
            dry_run=dry_run,
        )
    verb = "Would purge" if dry_run else "Purged"
    document = {"topic": name, "purged": count, "is_dry_run": dry_run}
    context.output.show(document, f"{verb} {count:,} dead letters of {name!r}.")


def trim_letters(
    context: CommandContext,
    name: Name,
    keep: Annotated[int | None, typer.Option("--keep", min=1, help="Keep so many of the youngest.")] = None,
    keep_for: Annotated[int | None, duration_option("--keep-for", "Keep what is younger than this.")] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete old letters for good, as a retention: what either option keeps is kept.

    Without --keep and --keep-for, by the topic's policy for dead letters.
    """
    from conquiet.mq import DeadLetterPolicy

    is_given = keep is not None or keep_for is not None
    policy = DeadLetterPolicy(retention_length=keep, retention_ms=keep_for) if is_given else None
    with dead_letters(context, name) as letters:
        count = context.confirmed(
            lambda is_dry_run: letters.trim(policy, dry_run=is_dry_run),
            lambda count: f"Delete {count:,} dead letters of {name!r} for good?",
            yes=yes,
            dry_run=dry_run,
        )
    document = {"topic": name, "removed": count, "is_dry_run": dry_run}
    verb = "Would delete" if dry_run else "Deleted"
    context.output.show(document, f"{verb} {count:,} dead letters of {name!r}.")


def _chosen(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
