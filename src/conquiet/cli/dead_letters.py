"""`conquiet dlq`: list, show, replay and purge dead letters."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.documents import letter_document
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.site import DryRunOption, Site, YesOption, command
from conquiet.cli.values import Name, parse_duration, parse_time, shown_time

if TYPE_CHECKING:
    from conquiet.mq import DeadLetters, ReplayReport

_ErrorType = Annotated[str | None, typer.Option("--error-type", help="Of this exception, as NoStock.")]
_OfGroup = Annotated[str | None, typer.Option("--group", "-g", help="Given up by this group.")]
_Since = Annotated[
    str | None, typer.Option("--since", help="Dead-lettered then or later (UTC).", metavar="TIME")
]
_Until = Annotated[str | None, typer.Option("--until", help="Dead-lettered then or before.", metavar="TIME")]
_Ids = Annotated[list[str] | None, typer.Argument(help="Ids of letters.", metavar="[ID]...")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    dlq = typer.Typer(
        help="Dead letters: messages that will not be tried again by themselves.", no_args_is_help=True
    )
    app.add_typer(dlq, name="dlq")
    for name, function in (("list", list_some), ("show", show), ("replay", replay), ("purge", purge)):
        command(dlq, name)(function)


def list_some(
    site: Site,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.")] = 50,
    after: Annotated[str | None, typer.Option("--after", help="Where the last page ended.")] = None,
    error_type: _ErrorType = None,
    group: _OfGroup = None,
    since: _Since = None,
    until: _Until = None,
) -> None:
    """The dead letters of a topic or stream, oldest first."""
    from conquiet.mq import DeadLetters

    with site.topic(name) as topic:
        letters = DeadLetters(topic)
        page = letters.list(limit=limit, after=after, **_which(error_type, group, since, until))
        total = letters.count()
    documents = [letter_document(letter) for letter in page.letters]

    def tell() -> None:
        rows = [
            (
                one["id"],
                shown_time(one["dead_lettered_at_ms"]),
                one["group"],
                one["attempts"],
                one["key"],
                _error(one),
            )
            for one in documents
        ]
        site.output.table(("id", "since (UTC)", "group", ">attempts", "key", "error"), rows)
        more = f"; more: --after {page.after}" if page.after else ""
        site.output.say(f"{len(rows):,} of {total:,} dead letters{more}")

    site.output.show({"topic": name, "count": total, "letters": documents, "after": page.after}, tell)


def show(
    site: Site, name: Name, letter_id: Annotated[str, typer.Argument(help="The letter's id.", metavar="ID")]
) -> None:
    """One dead letter in full: payload, headers, every error, traceback."""
    from conquiet.mq import DeadLetters

    with site.topic(name) as topic:
        document = letter_document(DeadLetters(topic).show(letter_id))

    def tell() -> None:
        for field, value in document.items():
            if field not in ("payload", "traceback") and value not in (None, "", {}):
                shown = f"{value}  {shown_time(value)} UTC" if field.endswith("_at_ms") else value
                site.output.say(f"{field + ':':<24}{shown}")
        site.output.say(f"payload:\n{json.dumps(document['payload'], indent=2, ensure_ascii=False)}")
        if document["traceback"]:
            site.output.say(f"traceback:\n{document['traceback']}")

    site.output.show(document, tell)


def replay(
    site: Site,
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
    from conquiet.mq import DeadLetters

    which = _which(error_type, group, since, until)
    if bool(letter_ids) == is_all or (letter_ids and (which or limit is not None)):
        raise UsageError("Give ids, or --all with filters if you like.")
    pace: dict[str, Any] = {"per_second": per_second, "to_all_groups": to_all_groups}

    def replayed(letters: DeadLetters, *, is_dry_run: bool) -> ReplayReport:
        if letter_ids:
            return letters.replay_many(letter_ids, dry_run=is_dry_run, **pace)
        return letters.replay_all(limit=limit, dry_run=is_dry_run, **pace, **which)

    with site.topic(name) as topic:
        letters = DeadLetters(topic)
        report = replayed(letters, is_dry_run=True)
        if not dry_run:
            site.output.confirm(f"Replay {report.replayed:,} dead letters of {name!r}?", is_yes=yes)
            report = replayed(letters, is_dry_run=False)
    verb = "Would replay" if dry_run else "Replayed"
    told = (
        f"{verb} {report.replayed:,}; {len(report.gone):,} not found, "
        f"{len(report.refused):,} cannot be replayed."
    )
    site.output.show({"topic": name, **asdict(report)}, lambda: site.output.say(told))
    return ExitCode.FAILED if report.refused or (letter_ids and report.gone) else ExitCode.DONE


def purge(
    site: Site,
    name: Name,
    letter_ids: _Ids = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Letters older than this.", metavar="DURATION")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every letter.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete letters for good, by id, by age, or all."""
    from conquiet.mq import DeadLetters

    if sum(map(bool, (letter_ids, older_than, is_all))) != 1:
        raise UsageError("Give ids, --older-than, or --all.")
    which: dict[str, Any] = {"letter_ids": letter_ids}
    if not letter_ids:
        which = {"older_than_ms": 0 if older_than is None else parse_duration(older_than)}
    with site.topic(name) as topic:
        letters = DeadLetters(topic)
        count = letters.purge(**which, dry_run=True)
        if not dry_run:
            site.output.confirm(f"Delete {count:,} dead letters of {name!r} for good?", is_yes=yes)
            count = letters.purge(**which)
    verb = "Would purge" if dry_run else "Purged"
    document = {"topic": name, "purged": count, "is_dry_run": dry_run}
    site.output.show(document, lambda: site.output.say(f"{verb} {count:,} dead letters of {name!r}."))


def _which(error_type: str | None, group: str | None, since: str | None, until: str | None) -> Any:
    times = {"since_ms": since and parse_time(since), "until_ms": until and parse_time(until)}
    given = {"error_type": error_type, "group": group, **times}
    return {name: value for name, value in given.items() if value is not None}


def _error(letter: dict[str, Any]) -> str:
    return f"{letter['error_type']}: {letter['error_message']}"[:100]
