"""Dead letters: replay one, chosen ones, or all that a filter matches, with a rate; and purge."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from conquiet.mq import DeadLetters, Topics
from conquiet.page.actions.action import Action, Plan, Preview
from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.commands import command, ids_of
from conquiet.page.query import Query, address
from conquiet.page.site import Site

#: Letters that a dry run counts: it reads each of them.
_MOST_COUNTED = 1_000
_PAGE = 100
_SHOWN_REFUSED = 3


def which_of(query: Query) -> dict[str, Any]:
    """The filters of dead letters in an address."""
    given = {
        "error_type": query.text("error_type"),
        "group": query.text("group"),
        "since_ms": query.time("since"),
        "until_ms": query.time("until"),
    }
    return {name: value for name, value in given.items() if value is not None}


def filter_options(query: Query) -> dict[str, str | None]:
    """The same as options of the command line."""
    return {name: query.text(name) for name in ("error_type", "group", "since", "until")}


def _plan_replay(site: Site, query: Query) -> Plan:
    name, ids, which = query.needed("name"), query.all("id"), which_of(query)
    rate, to_all = query.rate("per_second"), query.flag("to_all_groups")
    options = {"per_second": query.text("per_second"), "to_all_groups": to_all}
    if not ids:
        options |= {"all": True, **filter_options(query)}
    letters = DeadLetters(Topics(site.client).open_existing(name))
    how: dict[str, Any] = {"to_all_groups": to_all}
    what, before = _what(ids, which), asked_at(site, query)
    # Those that come after the question are left.
    chosen = which | {"until_ms": min(which.get("until_ms", before), before)}
    return Plan(
        question=f"Replay {what} of {name}?",
        verb="Replay",
        subject=name,
        command=command("dlq", "replay", name, *ids_of(ids), **options, yes=True),
        back=address("/letters", {"name": name}),
        options=(
            (
                "per_second",
                "At most so many per second",
                query.text("per_second") or "",
                "as fast as it goes",
            ),
        ),
        preview=partial(_preview_replay, letters, ids, which, how),
        hidden=() if ids else (("before", str(before)),),
        run=partial(_replay, letters, ids, chosen, rate, how),
    )


def _preview_replay(
    letters: DeadLetters, ids: list[str], which: dict[str, Any], how: dict[str, Any]
) -> Preview:
    if ids:
        report = letters.replay_many(ids, dry_run=True, **how)
    else:
        # No script for each of many: they are counted, and each says for itself whether it can be replayed.
        page = letters.list(limit=_MOST_COUNTED, most_read=_MOST_COUNTED, **which)
        more = " or more" if page.after else ""
        count = len(page.letters)
        text = f"{count:,}{more} dead letters match and would be replayed, those that are there now"
        is_possible = count > 0 or page.after is not None
        return Preview(count, text + ".", is_possible=is_possible, more="+" if more else "")
    text = f"{report.replayed:,} would be replayed"
    if report.not_found:
        text += f"; {len(report.not_found):,} are not there any more"
    if report.refused:
        text += f"; {len(report.refused):,} cannot be replayed: {_why(letters, report.refused[0], how)}"
    return Preview(report.replayed, text + ".", is_possible=report.replayed > 0)


def _why(letters: DeadLetters, letter_id: str, how: dict[str, Any]) -> str:
    """Why a letter cannot be replayed, by its own words."""
    letter = letters.show(letter_id)
    if letter.envelope is None:
        return letter.problem or letter.error_message or "it contains no message that can be read"
    if how["to_all_groups"]:
        return "it lacks its partition"
    return "its group or its entry is gone; conquiet dlq replay --to-all-groups adds a copy for every group"


def _replay(
    letters: DeadLetters,
    ids: list[str],
    which: dict[str, Any],
    per_second: float | None,
    how: dict[str, Any],
    progress: Progress,
) -> Done:
    replayed, gone, refused = 0, 0, list[str]()
    chosen = iter(ids) if ids else _matching(letters, which)
    for letter_id in _paced(chosen, per_second, progress):
        report = letters.replay_many([letter_id], **how)
        replayed, gone = replayed + report.replayed, gone + len(report.not_found)
        refused += report.refused
        progress.count = replayed
    text = f"Replayed {replayed:,} dead letters"
    if gone:
        text += f"; {gone:,} were not there any more"
    if refused:
        shown = ", ".join(refused[:_SHOWN_REFUSED])
        text += f"; {len(refused):,} cannot be replayed and stay: {shown}"
    return Done(replayed, text + ".", has_refused=bool(refused))


def _matching(letters: DeadLetters, which: dict[str, Any]) -> Iterator[str]:
    """The ids of letters, the oldest first."""
    after: str | None = None
    while True:
        page = letters.list(limit=_PAGE, after=after, **which)
        yield from [letter.id for letter in page.letters]
        after = page.after
        if after is None:
            return


def _paced(ids: Iterator[str], per_second: float | None, progress: Progress) -> Iterator[str]:
    began = time.monotonic()
    for number, letter_id in enumerate(ids):
        wait_s = 0.0 if per_second is None else began + number / per_second - time.monotonic()
        if progress.is_stopping or (wait_s > 0 and progress.wait(wait_s)):
            return
        yield letter_id


def _plan_purge(site: Site, query: Query) -> Plan:
    name, ids = query.needed("name"), query.all("id")
    age = query.text("older_than")
    is_all = not ids and age is None
    before = asked_at(site, query) - (query.duration("older_than") or 0)
    letters = DeadLetters(Topics(site.client).open_existing(name))
    what = _what(ids, {}) if ids else "all dead letters" if is_all else f"dead letters older than {age}"

    def purge(*, dry_run: bool = False) -> int:
        if ids:
            return letters.purge(ids, dry_run=dry_run)
        # Those that come after the question are left.
        return letters.purge(older_than_ms=max(0, site.now_ms() - before), dry_run=dry_run)

    def preview() -> Preview:
        more = ""
        if ids:
            count = purge(dry_run=True)
        elif is_all:
            count = letters.count()
        else:
            page = letters.list(limit=_MOST_COUNTED, most_read=_MOST_COUNTED, until_ms=before)
            count, more = len(page.letters), " or more" if page.after else ""
        return Preview(
            count, f"{count:,}{more} dead letters would be deleted for good.", is_possible=count > 0
        )

    def run(progress: Progress) -> Done:
        progress.count = purge()
        return Done(progress.count, f"Deleted {progress.count:,} dead letters for good.")

    return Plan(
        question=f"Delete {what} of {name} for good?",
        verb="Delete for good",
        subject=name,
        command=command("dlq", "purge", name, *ids_of(ids), older_than=age, all=is_all, yes=True),
        back=address("/letters", {"name": name}),
        destroys=True,
        hidden=() if ids else (("before", str(asked_at(site, query))),),
        preview=preview,
        run=run,
    )


def asked_at(site: Site, query: Query) -> int:
    """When the question was shown, by the server's clock; now, if it is asked now."""
    return query.number("before", 0, most=2**53) or site.now_ms()


def _what(ids: list[str], which: dict[str, Any]) -> str:
    if len(ids) == 1:
        return f"dead letter {ids[0]}"
    if ids:
        return f"{len(ids):,} dead letters"
    kind = which.get("error_type")
    return (
        f"all dead letters with {kind}"
        if kind
        else "all dead letters that match"
        if which
        else "all dead letters"
    )


ACTIONS = (Action("replay", _plan_replay), Action("purge", _plan_purge))
