"""Overview: every topic, plain stream and queue of tasks, with figures, rates and what the doctor finds."""

from __future__ import annotations

from typing import Any

from conquiet.errors import ConquietError
from conquiet.operations import Finding, ServerFacts, diagnose
from conquiet.page.query import Query
from conquiet.page.rows import address_of_finding
from conquiet.page.sampler import Figures
from conquiet.page.site import Site
from conquiet.page.view import View

_ROWS = 25
_KINDS = ("all", "topic", "stream", "queue")
_SORTS = ("attention", "backlog", "name")


def read(site: Site, query: Query) -> dict[str, Any]:
    """The rows of one page of the list; more than a page is not read."""
    subjects, wanted = site.catalogue.subjects(site.client), query.text("q") or ""
    kind, sort = query.choice("kind", _KINDS), query.choice("sort", _SORTS)
    sampler, part = site.sampler, wanted.casefold()
    found = [one for one in subjects if part in one.name.casefold() and kind in ("all", one.kind)]
    figures = {one: sampler.figures(one) for one in found}
    if sort != "name":
        found.sort(key=lambda one: attention_order(figures[one], by_letters=sort == "attention"))
    pages = max(1, -(-len(found) // _ROWS))
    page = min(query.number("page", 1, most=10_000), pages)
    shown = found[(page - 1) * _ROWS : page * _ROWS]
    for subject in shown:
        sampler.look_at(subject)
    rows = site.rows.read(site.client, shown, figures)
    servers: list[ServerFacts] = []
    findings: list[Finding] = []
    problem = ""
    try:
        servers = site.servers()
        findings = [one for one in diagnose(servers) if one.level != "ok"]
    except ConquietError as error:
        problem = f"The server is not checked: {error}"
    return {
        "rows": rows,
        "total": len(found),
        "all_subjects": len(subjects),
        "page": page,
        "pages": pages,
        "kind": kind,
        "kinds": _KINDS,
        "sort": sort,
        "sorts": _SORTS,
        "q": wanted,
        "server_findings": findings,
        "server_problem": problem,
        "findings": [
            (one, address_of_finding(one.check, row.subject)) for row in rows for one in row.findings
        ],
        "servers": servers,
    }


def attention_order(figures: Figures | None, *, by_letters: bool) -> tuple[int, int, int]:
    """What needs attention first: dead letters, then what is undelivered or pending; then by name."""
    samples = () if figures is None else figures.last
    dead = max((sample.dead_letters for sample in samples), default=0)
    backlog = sum((sample.lag or 0) + sample.pending for sample in samples)
    return (-bool(dead) if by_letters else 0, -backlog, -dead)


VIEW = View("/", "overview.html", read, "overview")
