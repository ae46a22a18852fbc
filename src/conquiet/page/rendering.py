"""Rendering: templates with escaping always on, and the filters that they use."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from conquiet.operations.values import shown_age, shown_lag, shown_time
from conquiet.page.commands import command
from conquiet.page.masks import visible
from conquiet.page.query import address

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
        "time": _time,
        "n": _number,
        "rate": _rate,
        "text": lambda value: visible("" if value is None else str(value)),
    }
    made.globals |= {"cli": command}
    return made


def render(
    request: Request, template: str, context: dict[str, Any], *, status: int = 200, layout: str = "base.html"
) -> Response:
    """One page; `link` in templates is an address below where the page is mounted."""
    text = render_text(request, template, context, layout=layout)
    return HTMLResponse(text, status_code=status)


def render_text(
    request: Request, template: str, context: dict[str, Any], *, layout: str = "base.html"
) -> str:
    """As `render`, the text alone."""
    root = str(request.scope.get("root_path", "")).rstrip("/")

    def link(path: str, **parameters: object) -> str:
        return root + address(path, parameters)

    def here(**changes: object) -> str:
        given: dict[str, object] = {}
        for name in request.query_params:
            given[name] = request.query_params.getlist(name)
        given.pop("done", None)
        return link(request.scope["path"].removeprefix(root), **(given | changes))

    found = environment().get_template(template)
    return found.render(link=link, here=here, layout=layout, **context)


def _time(milliseconds: int | None) -> Markup | str:
    text = shown_time(milliseconds)
    if len(text) != 19:
        return text
    return Markup('<time datetime="{}Z">{}</time>').format(text.replace(" ", "T"), text)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:,.1f}"
