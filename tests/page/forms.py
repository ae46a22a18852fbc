"""The fields of the form that asks before an action, as a browser would send them."""

from __future__ import annotations

from html.parser import HTMLParser


class _Fields(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {}
        self._is_inside = False

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "form":
            self._is_inside = given.get("class") == "confirm"
        if tag == "input" and self._is_inside and given.get("name"):
            self.found.setdefault(given["name"], []).append(given.get("value") or "")


def fields_of(html: str, **changed: str) -> dict[str, list[str] | str]:
    """The fields of the form with some of them changed."""
    parser = _Fields()
    parser.feed(html)
    assert "form_token" in parser.found, html[-2_000:]
    return {**parser.found, **changed}
