"""The audit stream: who changed what."""

from __future__ import annotations

from typing import Any

from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View

_ROWS = 100


def read(site: Site, query: Query) -> dict[str, Any]:
    """The last entries, the newest first."""
    entries = site.audit.last(_ROWS, before=query.entry_id("before"))
    return {"entries": entries, "before": entries[-1].id if len(entries) == _ROWS else None}


VIEW = View("/audit", "audit.html", read, "audit")
