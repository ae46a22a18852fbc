"""Overview: every topic, plain stream and queue of tasks, with figures, rates and what the doctor finds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conquiet.errors import ConquietError
from conquiet.operations import (
    Finding,
    Level,
    QueueFacts,
    TopicFacts,
    diagnose,
    queue_facts,
    topic_facts,
    worst_level,
)
from conquiet.page.catalogue import Subject
from conquiet.page.query import Query
from conquiet.page.sampler import Figures
from conquiet.page.site import Site
from conquiet.page.view import View

_ROWS = 25
#: After this time the rest of the rows has the figures of the last sample, until the page is updated.
_READ_S = 0.12
_KINDS = ("all", "topic", "stream", "queue")
_SORTS = ("attention", "backlog", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One subject; `None` is what is not known."""

    subject: Subject
    length: int | None = None
    lag: int | None = None
    is_lag_known: bool = True
    pending: int | None = None
    oldest_ms: int | None = None
    delayed: int | None = None
    dead_letters: int | None = None
    in_per_s: float | None = None
    out_per_s: float | None = None
    level: Level | None = None
    findings: tuple[Finding, ...] = ()
    problem: str = ""
    #: Whether the figures are those of the last sample.
    is_sampled: bool = False


def read(site: Site, query: Query) -> dict[str, Any]:
    """The rows of one page of the list; more than a page is not read."""
    subjects, wanted = site.catalogue.subjects(site.client), (query.text("q") or "").casefold()
    kind, sort = query.choice("kind", _KINDS), query.choice("sort", _SORTS)
    page = query.number("page", 1, most=10_000)
    sampler = site.sampler
    found = [one for one in subjects if wanted in one.name.casefold() and kind in ("all", one.kind)]
    figures = {one: sampler.figures(one) for one in found}
    if sort != "name":
        found.sort(key=lambda one: _rank(figures[one], sort))
    shown = found[(page - 1) * _ROWS : page * _ROWS]
    for subject in shown:
        sampler.look_at(subject)
    rows = _rows(site, shown, figures)
    server_findings, problem = _server_findings(site)
    return {
        "rows": rows,
        "total": len(found),
        "all_subjects": len(subjects),
        "page": page,
        "pages": max(1, -(-len(found) // _ROWS)),
        "kind": kind,
        "kinds": _KINDS,
        "sort": sort,
        "sorts": _SORTS,
        "q": query.text("q") or "",
        "server_findings": server_findings,
        "server_problem": problem,
        "findings": [finding for row in rows for finding in row.findings],
        "servers": [] if problem else site.servers(),
    }


def _rank(figures: Figures | None, sort: str) -> tuple[int, int, int]:
    """What needs attention first: dead letters, then what is undelivered or pending; then by name."""
    samples = () if figures is None else figures.last
    dead = max((sample.dead_letters for sample in samples), default=0)
    backlog = sum((sample.lag or 0) + sample.pending for sample in samples)
    return (0 if sort == "backlog" else -bool(dead), -backlog, -dead)


def _rows(site: Site, subjects: Sequence[Subject], figures: dict[Subject, Figures | None]) -> list[Row]:
    ends_at, rows = time.monotonic() + _READ_S, []
    for subject in subjects:
        known = figures[subject]
        if time.monotonic() > ends_at:
            rows.append(_sampled(subject, known))
            continue
        try:
            rows.append(_read_row(site, subject, known))
        except ConquietError as error:
            rows.append(Row(subject=subject, level="error", problem=str(error)))
    return rows


def _read_row(site: Site, subject: Subject, figures: Figures | None) -> Row:
    if subject.kind == "queue":
        return _queue_row(
            subject, queue_facts(site.client, subject.name, namespace=site.settings.namespace), figures
        )
    return _topic_row(subject, topic_facts(site.client, subject.name), figures)


def _topic_row(subject: Subject, facts: TopicFacts, figures: Figures | None) -> Row:
    lags = [group.lag for group in facts.groups]
    ages = [
        age
        for group in facts.groups
        for age in (group.oldest_pending_age_ms, group.oldest_undelivered_age_ms)
    ]
    findings = tuple(one for one in diagnose([], [facts]) if one.level != "ok")
    return Row(
        subject=subject,
        length=facts.length,
        lag=max((lag for lag in lags if lag is not None), default=None if lags else facts.length),
        is_lag_known=None not in lags,
        pending=sum(group.pending for group in facts.groups),
        oldest_ms=max((age for age in ages if age is not None), default=None),
        delayed=facts.delayed,
        dead_letters=facts.dead_letters,
        level=worst_level(findings),
        findings=findings,
        **_rates(figures),
    )


def _queue_row(subject: Subject, facts: QueueFacts, figures: Figures | None) -> Row:
    findings = tuple(one for one in diagnose([], queues=[facts]) if one.level != "ok")
    oldest = [sample.oldest_pending_age_ms for sample in (figures.last if figures else ())]
    return Row(
        subject=subject,
        length=facts.unfinished,
        lag=facts.queued,
        pending=facts.in_flight + facts.waiting,
        oldest_ms=oldest[0] if oldest else None,
        delayed=facts.delayed,
        dead_letters=facts.dead_letters,
        level=worst_level(findings),
        findings=findings,
        **_rates(figures),
    )


def _sampled(subject: Subject, figures: Figures | None) -> Row:
    """What the last sample says; nothing is read."""
    if figures is None or not figures.last:
        return Row(subject=subject, is_sampled=True)
    samples = figures.last
    lags = [sample.lag for sample in samples if sample.group is not None]
    return Row(
        subject=subject,
        length=samples[0].length,
        lag=max((lag for lag in lags if lag is not None), default=None if lags else samples[0].length),
        is_lag_known=None not in lags,
        pending=sum(sample.pending for sample in samples),
        dead_letters=samples[0].dead_letters,
        is_sampled=True,
        **_rates(figures),
    )


def _rates(figures: Figures | None) -> dict[str, Any]:
    found = [] if figures is None else list(figures.rates().values())
    enqueued = [one.enqueued_per_s for one in found if one.enqueued_per_s is not None]
    handled = [one.handled_per_s for one in found if one.handled_per_s is not None]
    return {
        "in_per_s": max(enqueued) if enqueued else None,
        "out_per_s": sum(handled) if handled else None,
    }


def _server_findings(site: Site) -> tuple[list[Finding], str]:
    try:
        return [one for one in diagnose(site.servers()) if one.level != "ok"], ""
    except ConquietError as error:
        return [], f"The server is not checked: {error}"


VIEW = View("/", "overview.html", read, "overview")
