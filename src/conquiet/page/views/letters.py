"""Dead letters: by error, page by page, and one with its traceback."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conquiet.mq import DeadLetterRecord, DeadLetters, Topics
from conquiet.page.actions.letters import filter_options, which_of
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View
from conquiet.page.views.messages import trace_id, trace_url

_ROWS = 50
#: The newest letters, by which they are grouped, and letters that a search reads for one page.
_GROUPED = 500
_MOST_READ = 2_000


@dataclass(slots=True)
class ErrorGroup:
    """Letters with one kind of error that one group gave up."""

    error_type: str
    group: str | None
    count: int
    newest: DeadLetterRecord
    oldest_ms: int


def read(site: Site, query: Query) -> dict[str, Any]:
    """The newest letters, and the kinds of errors of the newest 500."""
    name, which = query.needed("name"), which_of(query)
    letters = DeadLetters(Topics(site.client).open_existing(name))
    newest = letters.list(limit=_GROUPED, newest_first=True, most_read=_GROUPED)
    page = newest
    if which or query.text("after"):
        how: dict[str, Any] = {"after": query.text("after"), "newest_first": True, "most_read": _MOST_READ}
        page = letters.list(limit=_ROWS, **how, **which)
    shown = page.letters[:_ROWS]
    return {
        "name": name,
        "total": letters.count(),
        "letters": shown,
        "after": shown[-1].id if len(shown) < len(page.letters) else page.after,
        "groups": error_groups(newest.letters),
        "grouped": len(newest.letters),
        "has_more": newest.after is not None,
        "filters": {field: value or "" for field, value in filter_options(query).items()},
        "is_filtered": bool(which),
        "most_read": _MOST_READ,
    }


def error_groups(letters: Iterable[DeadLetterRecord]) -> list[ErrorGroup]:
    """By error and group, the largest first; letters come newest first."""
    found: dict[tuple[str, str | None], ErrorGroup] = {}
    for letter in letters:
        known = found.get((letter.error_type, letter.group))
        if known is None:
            found[letter.error_type, letter.group] = ErrorGroup(
                letter.error_type, letter.group, 1, letter, letter.dead_lettered_at_ms
            )
        else:
            known.count += 1
            known.oldest_ms = letter.dead_lettered_at_ms
    return sorted(found.values(), key=lambda group: -group.count)


def read_one(site: Site, query: Query) -> dict[str, Any]:
    """One letter in full."""
    name = query.needed("name")
    letter = DeadLetters(Topics(site.client).open_existing(name)).show(query.needed("id"))
    if letter.raw_fields is None:
        payload = site.mask.as_json(letter.payload, indent=2)
    else:
        pairs = (
            f"{field.decode(errors='backslashreplace')}: {value.decode(errors='backslashreplace')}"
            for field, value in letter.raw_fields
        )
        payload = site.mask.raw("\n".join(pairs))
    return {
        "name": name,
        "letter": letter,
        "headers": site.mask.hide(letter.headers),
        "payload": payload,
        "trace_url": trace_url(site, letter.headers),
        "trace_id": trace_id(letter.headers),
    }


VIEWS = (View("/letters", "letters.html", read), View("/letter", "letter.html", read_one))
