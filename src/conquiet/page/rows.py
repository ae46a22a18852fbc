"""Rows of the overview: the figures of each subject, as many read anew as a moment allows."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

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
from conquiet.page.query import address
from conquiet.page.sampler import Figures
from conquiet.queue import Client

#: After this time the rest of the rows is as it was read before, or as it was sampled.
_READ_S = 0.12
#: A row that was read before is shown for so long; of so many subjects they are kept.
_KEPT_S = 60.0
_KEPT = 1_000


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

    @classmethod
    def of_topic(cls, subject: Subject, facts: TopicFacts) -> Self:
        """A topic or plain stream as it is now."""
        lags = [group.lag for group in facts.groups]
        ages = [
            age
            for group in facts.groups
            for age in (group.oldest_pending_age_ms, group.oldest_undelivered_age_ms)
        ]
        findings = tuple(one for one in diagnose([], [facts]) if one.level != "ok")
        return cls(
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
        )

    @classmethod
    def of_queue(cls, subject: Subject, facts: QueueFacts, figures: Figures | None) -> Self:
        """A queue of tasks as it is now."""
        findings = tuple(one for one in diagnose([], queues=[facts]) if one.level != "ok")
        return cls(
            subject=subject,
            length=facts.unfinished,
            lag=facts.queued,
            pending=facts.in_flight + facts.waiting,
            oldest_ms=figures.last[0].oldest_pending_age_ms if figures else None,
            delayed=facts.delayed,
            dead_letters=facts.dead_letters,
            level=worst_level(findings),
            findings=findings,
        )

    @classmethod
    def of_samples(cls, subject: Subject, figures: Figures | None) -> Self:
        """What the last sample says."""
        if figures is None:
            return cls(subject=subject)
        lags = [sample.lag for sample in figures.last if sample.group is not None]
        length = figures.last[0].length
        return cls(
            subject=subject,
            length=length,
            lag=max((lag for lag in lags if lag is not None), default=None if lags else length),
            is_lag_known=None not in lags,
            pending=sum(sample.pending for sample in figures.last),
            dead_letters=figures.last[0].dead_letters,
        )

    def with_rates(self, figures: Figures | None) -> Self:
        """The same with what comes in and goes out each second."""
        rates = [] if figures is None else list(figures.rates().values())
        enqueued = [one.enqueued_per_s for one in rates if one.enqueued_per_s is not None]
        handled = [one.handled_per_s for one in rates if one.handled_per_s is not None]
        return replace(
            self,
            in_per_s=max(enqueued) if enqueued else None,
            out_per_s=sum(handled) if handled else None,
        )


def address_of_finding(check: str, subject: Subject) -> str:
    """The view that shows what the doctor's check has found."""
    name = {"name": subject.name}
    if subject.kind == "queue":
        return address("/queue", name | {"where": "dead_lettered" if check == "dead-letters" else None})
    views = {"dead-letters": "/letters", "dead-consumer": "/pending", "old-pending": "/pending"}
    return address(views.get(check, "/topic"), name)


class Rows:
    """Reads rows; over a slow network those of one page have their turn one after the other."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._read: OrderedDict[Subject, tuple[float, Row]] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self, client: Client, subjects: Sequence[Subject], figures: Mapping[Subject, Figures | None]
    ) -> list[Row]:
        """A row of each subject."""
        began = time.monotonic()
        before = {subject: self._read.get(subject, (0.0, None)) for subject in subjects}
        rows = {}
        for subject, (at, row) in before.items():
            is_fresh = row is not None and began - at < _KEPT_S
            rows[subject] = row if row and is_fresh else Row.of_samples(subject, figures[subject])
        # Those that were read longest ago first.
        for subject in sorted(subjects, key=lambda one: before[one][0]):
            rows[subject] = self._read_one(client, subject, figures[subject])
            with self._lock:
                self._read[subject] = (time.monotonic(), rows[subject])
                self._read.move_to_end(subject)
                if len(self._read) > _KEPT:
                    self._read.popitem(last=False)
            if time.monotonic() - began > _READ_S:
                break
        return [rows[subject].with_rates(figures[subject]) for subject in subjects]

    def _read_one(self, client: Client, subject: Subject, figures: Figures | None) -> Row:
        try:
            if subject.kind == "queue":
                facts = queue_facts(client, subject.name, namespace=self._namespace)
                return Row.of_queue(subject, facts, figures)
            return Row.of_topic(subject, topic_facts(client, subject.name))
        except ConquietError as error:
            return Row(subject=subject, level="error", problem=str(error))
