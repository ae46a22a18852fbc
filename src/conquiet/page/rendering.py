"""Rendering: templates with escaping always on, and the filters that they use."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from conquiet.mq.look.stats import PartitionBacklog
from conquiet.operations.values import shown_age, shown_lag, shown_time
from conquiet.page.commands import command
from conquiet.page.masks import visible
from conquiet.page.query import Place
from conquiet.page.rows import address_of_finding
from conquiet.queue.message import entry_id_order

HERE = Path(__file__).parent


@cache
def environment() -> Environment:
    """The templates of the page."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "age": shown_age,
        "lag": shown_lag,
        "time": time_element,
        "n": lambda value: "-" if value is None else f"{value:,}",
        "rate": shown_rate,
        "below": lambda path, link: link(path),
        "undelivered": undelivered_from,
        "leads_to": lambda check, subject, link: link(address_of_finding(check, subject)),
        "text": lambda value: visible("" if value is None else str(value)),
    }
    made.globals |= {"cli": command}
    return made


def render(
    place: Place, template: str, context: dict[str, Any], *, status: int = 200, layout: str = "base.html"
) -> Response:
    """One page; `link` in templates is an address below where the page is mounted."""
    return HTMLResponse(render_text(place, template, context, layout=layout), status_code=status)


def render_text(place: Place, template: str, context: dict[str, Any], *, layout: str = "base.html") -> str:
    """As `render`, the text alone."""
    found = environment().get_template(template)
    text = found.render(link=place.link, here=place.here, layout=layout, **context)
    # JSON may have a lone surrogate, which UTF-8 cannot carry.
    return text.encode(errors="backslashreplace").decode()


def time_element(milliseconds: int | None) -> Markup | str:
    """A time for people, in UTC, and for their programs."""
    text = shown_time(milliseconds)
    if len(text) != 19:
        return text
    return Markup('<time datetime="{}Z">{}</time>').format(text.replace(" ", "T"), text)


def undelivered_from(partitions: Iterable[PartitionBacklog]) -> str | None:
    """The first entry id that a group may not have delivered, in partitions that it lags behind in."""
    marks = [one.last_delivered_id or "0-0" for one in partitions if one.lag != 0]
    if not marks:
        return None
    milliseconds, _, number = min(marks, key=entry_id_order).partition("-")
    return f"{milliseconds}-{int(number) + 1}"


def shown_rate(per_second: float | None) -> str:
    """Messages per second."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:,.1f}"
