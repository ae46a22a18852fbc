"""View: one kind of page, read with bounded work in Redis and rendered by a template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conquiet.page.query import Query
from conquiet.page.site import Site

#: Reads what the template needs; the names are the template's.
Read = Callable[[Site, Query], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class View:
    """A view at a path."""

    path: str
    template: str
    read: Read
    #: What is marked in the menu.
    section: str = "overview"
