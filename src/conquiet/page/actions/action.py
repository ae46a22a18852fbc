"""Action and Plan: what is to be changed, what a dry run says of it, and how it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.query import Query
from conquiet.page.site import Site


@dataclass(frozen=True, slots=True)
class Preview:
    """What a dry run says."""

    #: How many messages, tasks or consumers would be changed.
    count: int
    #: In a sentence.
    text: str
    #: Whether there is anything to do.
    is_possible: bool = True
    #: "+" if there may be more than were counted.
    more: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """A field that the user may still change before an action."""

    name: str
    label: str
    hint: str
    value: str = ""

    def with_value(self, value: str | None) -> Option:
        """The same with what was given."""
        return replace(self, value=value or "")


RATE_OPTION = Option("per_second", "At most so many per second", "as fast as it goes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One change that was asked for, with everything that it needs."""

    #: As a question that says what is changed.
    question: str
    #: What the button says.
    verb: str
    #: The topic, stream, queue or schedule.
    subject: str
    #: The command that does the same.
    command: str
    #: Where to go afterwards, below the page's root.
    back: str
    #: Whether something is gone afterwards.
    destroys: bool = False
    options: tuple[Option, ...] = ()
    #: What the form sends beside what was asked for: what comes after the question is not changed by it.
    hidden: tuple[tuple[str, str], ...] = ()
    #: Changes nothing.
    preview: Callable[[], Preview]
    run: Callable[[Progress], Done]


@dataclass(frozen=True, slots=True)
class Action:
    """A kind of change; its address is /act/<name>."""

    name: str
    plan: Callable[[Site, Query], Plan]
