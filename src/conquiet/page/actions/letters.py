"""Dead letters: replay one, chosen ones, or all that a filter matches, with a rate; and purge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conquiet.mq import DeadLetters, Topics
from conquiet.page.actions.action import RATE_OPTION, Action, Plan, Preview
from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.commands import command
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


@dataclass(frozen=True, slots=True)
class Replay:
    """Which dead letters are replayed, and how; those that come after the question are left."""

    letters: DeadLetters
    #: Chosen ones; else all that match.
    ids: list[str]
    which: dict[str, Any]
    to_all_groups: bool
    per_second: float | None

    def preview(self) -> Preview:
        """What would be replayed; of many, how many match."""
        if not self.ids:
            # No script for each of many: each says for itself whether it can be replayed.
            page = self.letters.list(limit=_MOST_COUNTED, most_read=_MOST_COUNTED, **self.which)
            count, more = len(page.letters), " or more" if page.after else ""
            text = f"{count:,}{more} dead letters match and would be replayed, those that are there now."
            is_possible = count > 0 or page.after is not None
            return Preview(count, text, is_possible=is_possible, more="+" if more else "")
        report = self.letters.replay_many(self.ids, dry_run=True, to_all_groups=self.to_all_groups)
        text = f"{report.replayed:,} would be replayed"
        if report.not_found:
            text += f"; {len(report.not_found):,} are not there any more"
        if report.refused:
            text += f"; {len(report.refused):,} cannot be replayed: {self._why(report.refused[0])}"
        return Preview(report.replayed, text + ".", is_possible=report.replayed > 0)

    def run(self, progress: Progress) -> Done:
        """Replay them, one by one, until the job is to stop."""
        gone, refused = 0, list[str]()
        for letter_id in progress.paced(self.ids or self._matching(), self.per_second):
            report = self.letters.replay_many([letter_id], to_all_groups=self.to_all_groups)
            progress.count += report.replayed
            gone += len(report.not_found)
            refused += report.refused
        text = f"Replayed {progress.count:,} dead letters"
        if gone:
            text += f"; {gone:,} were not there any more"
        if refused:
            text += f"; {len(refused):,} cannot be replayed and stay: {', '.join(refused[:_SHOWN_REFUSED])}"
        return Done(progress.count, text + ".", has_refused=bool(refused))

    def _matching(self) -> Iterator[str]:
        """The ids of letters, the oldest first."""
        after: str | None = None
        while True:
            page = self.letters.list(limit=_PAGE, after=after, **self.which)
            yield from [letter.id for letter in page.letters]
            after = page.after
            if after is None:
                return

    def _why(self, letter_id: str) -> str:
        """Why a letter cannot be replayed, by its own words."""
        letter = self.letters.show(letter_id)
        if letter.envelope is None:
            return letter.problem or letter.error_message or "it contains no message that can be read"
        if self.to_all_groups:
            return "it lacks its partition"
        return "its group or its entry is gone; Replay to every group adds a copy for each"


def plan_replay(site: Site, query: Query) -> Plan:
    """Replay one, chosen ones or all that match."""
    name, ids, which = query.needed("name"), query.chosen(), which_of(query)
    to_all = query.flag("to_all_groups")
    options = {"per_second": query.text("per_second"), "to_all_groups": to_all}
    if not ids:
        options |= {"all": True, **filter_options(query)}
    before = asked_at(site, query)
    until_ms = min(which.get("until_ms", before), before)
    if not ids:
        # The command leaves what comes after the question, too.
        options |= {"until": until_ms}
    letters = DeadLetters(Topics(site.client).open_existing(name))
    replay = Replay(letters, ids, which | {"until_ms": until_ms}, to_all, query.rate("per_second"))
    kind = which.get("error_type")
    every = f"all dead letters with {kind}" if kind else f"all dead letters{' that match' if which else ''}"
    return Plan(
        question=f"Replay {_named(ids) if ids else every} of {name}?",
        verb="Replay",
        subject=name,
        command=command("dlq", "replay", name, *ids, **options, yes=True),
        back=address("/letters", {"name": name}),
        options=(RATE_OPTION.with_value(query.text("per_second")),),
        hidden=() if ids else (("before", str(before)),),
        preview=replay.preview,
        run=replay.run,
    )


def plan_purge(site: Site, query: Query) -> Plan:
    """Delete chosen ones, or all."""
    name, ids, asked_ms = query.needed("name"), query.chosen(), asked_at(site, query)
    letters = DeadLetters(Topics(site.client).open_existing(name))

    def preview() -> Preview:
        count = letters.purge(ids, dry_run=True) if ids else letters.count()
        return Preview(count, f"{count:,} dead letters would be deleted for good.", is_possible=count > 0)

    def run(progress: Progress) -> Done:
        # Those that come after the question are left.
        progress.count = letters.purge(ids) if ids else letters.purge(until_ms=asked_ms)
        return Done(progress.count, f"Deleted {progress.count:,} dead letters for good.")

    return Plan(
        question=f"Delete {_named(ids) if ids else 'all dead letters'} of {name} for good?",
        verb="Delete for good",
        subject=name,
        command=command("dlq", "purge", name, *ids, all=not ids, until=None if ids else asked_ms, yes=True),
        back=address("/letters", {"name": name}),
        destroys=True,
        hidden=() if ids else (("before", str(asked_ms)),),
        preview=preview,
        run=run,
    )


def asked_at(site: Site, query: Query) -> int:
    """When the question was shown, by the server's clock; now, if it is asked now."""
    return query.number("before", 0, most=2**53) or site.now_ms()


def _named(ids: list[str]) -> str:
    return f"dead letter {ids[0]}" if len(ids) == 1 else f"{len(ids):,} dead letters"


ACTIONS = (Action("replay", plan_replay), Action("purge", plan_purge))
