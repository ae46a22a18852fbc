"""Messages: browse and search by id, time, key and text; one message and where it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from conquiet.mq import MessageBrowser, MessageQuery, StoredMessage, Topics
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View

_ROWS = 50
#: Messages that one page of a search reads; the next one goes on behind them.
_MOST_READ = 2_000
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_IN_A_ROW = 300


def read(site: Site, query: Query) -> dict[str, Any]:
    """One page, the newest first unless said otherwise; a search reads 2,000 messages for it."""
    name = query.needed("name")
    text = query.text("text")
    if text is not None and site.settings.masked_fields:
        raise ValueError("this page masks fields: a search by text would find what they contain")
    wanted = MessageQuery(
        limit=query.number("limit", _ROWS, most=500),
        cursor=query.text("cursor"),
        oldest_first=query.flag("oldest"),
        since=query.position("since"),
        until=query.position("until"),
        key=query.text("key"),
        text=text,
        partition=query.partition(),
        most_read=_MOST_READ,
    )
    page = MessageBrowser(site.client).page(name, wanted)
    return {
        "name": name,
        "page": page,
        "messages": [(one, summary_of(site, one)) for one in page.messages],
        "may_search_text": not site.settings.masked_fields,
        "most_read": _MOST_READ,
        "search": {field: query.text(field) or "" for field in ("since", "until", "key", "text")},
        "oldest": query.flag("oldest"),
        "partition": query.partition(),
    }


def read_one(site: Site, query: Query) -> dict[str, Any]:
    """One message in full, and what became of it in each group."""
    name, browser = query.needed("name"), MessageBrowser(site.client)
    message = browser.message(name, query.needed("id"))
    if message.problem is None:
        payload = site.mask.as_json(message.payload, indent=2)
    else:
        fields = (message.fields or {}).items()
        payload = site.mask.raw("\n".join(f"{field}: {value}" for field, value in fields))
    return {
        "name": name,
        "message": message,
        "places": browser.places(name, message),
        "partitions": Topics(site.client).open(name).partition_count,
        "headers": site.mask.hide(message.headers),
        "payload": payload,
        "trace_url": trace_url(site, message.headers),
        "trace_id": trace_id(message.headers),
    }


def read_tail(site: Site, query: Query) -> dict[str, Any]:
    """An empty list, which is filled as messages are added."""
    name = query.needed("name")
    Topics(site.client).open_existing(name)
    return {"name": name}


def summary_of(site: Site, message: StoredMessage) -> str:
    """A message in one line."""
    if message.problem is not None:
        return f"malformed: {message.problem}"[:_IN_A_ROW]
    return site.mask.as_json(message.payload, longest=_IN_A_ROW)


def trace_id(headers: Mapping[str, str]) -> str | None:
    """The trace that a message belongs to, by its header of W3C."""
    match = _TRACE.fullmatch(str(headers.get("traceparent", "")))
    return match[1] if match else None


def trace_url(site: Site, headers: Mapping[str, str]) -> str | None:
    """Where that trace is shown, if the settings say so."""
    found = trace_id(headers)
    if found is None or site.settings.trace_url is None:
        return None
    return site.settings.trace_url.replace("{trace_id}", found)


VIEWS = (
    View("/messages", "messages.html", read),
    View("/message", "message.html", read_one),
    View("/tail", "tail.html", read_tail),
)
