"""Schedules: what is enqueued when, what ran, and which beat leads."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from conquiet.operations.values import shown_time
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View

if TYPE_CHECKING:
    from conquiet.tasks import Schedule
    from conquiet.tasks.schedules.store import StoredSchedule

_ROWS = 50


def read(site: Site, query: Query) -> dict[str, Any]:
    """One page of the schedules, in the order of names."""
    if not site.has_tasks:
        return {"rows": [], "stats": None, "page": 1, "has_next": False, "command_options": {}}
    schedules, page = site.app.schedules, query.number("page", 1, most=10_000)
    names = list(islice(schedules.store.names(), (page - 1) * _ROWS, page * _ROWS + 1))
    stored = schedules.store.read_many(names[:_ROWS])
    return {
        "rows": [(one, *_definition_of(site, one)) for one in stored],
        "stats": schedules.stats(),
        "page": page,
        "has_next": len(names) > _ROWS,
        "command_options": site.command_options,
    }


def read_one(site: Site, query: Query) -> dict[str, Any]:
    """One schedule with its next times and its last occurrences."""
    from conquiet.tasks import UnknownScheduleError, next_occurrences

    name, schedules = query.needed("name"), site.app.schedules
    _, stored = schedules.store.read(name)
    if stored is None:
        raise UnknownScheduleError(name)
    schedule, when, problem = _definition_of(site, stored)
    times: list[tuple[int, int]] = []
    if schedule is not None:
        begin = None if stored.planned_ms is None else stored.planned_ms - 1
        times = next_occurrences(schedule, 10, begin)
    document = None if schedule is None else schedule.document()
    return {
        "name": name,
        "stored": stored,
        "schedule": schedule,
        "when": when,
        "problem": problem,
        "times": times,
        "history": schedules.history(name, 50),
        "document": None if document is None else site.mask.as_json(document, indent=2),
        "command_options": site.command_options,
        "now": shown_time(round(datetime.now(UTC).timestamp() * 1000)),
    }


def _definition_of(site: Site, stored: StoredSchedule) -> tuple[Schedule | None, str, str]:
    """The schedule, when it is due in words, and why it cannot be read."""
    try:
        schedule = site.app.schedules.decode(stored)
    except ValueError as error:
        # Signed or encrypted with keys that only the app has.
        return None, "", str(error)
    document = schedule.document()
    if "every_s" in document:
        return schedule, f"every {document['every_s']:g} s", ""
    text = document.get("cron") or document.get("calendar") or document.get("at")
    return schedule, f"{text} {document.get('tz', '')}".strip(), ""


VIEWS = (
    View("/schedules", "schedules.html", read, "schedules"),
    View("/schedule", "schedule.html", read_one, "schedules"),
)
