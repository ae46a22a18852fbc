"""What of a message is shown: values of masked fields are not, passwords never, and nothing is invisible."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from conquiet.masking import HIDDEN, mask

#: More of one text is not sent to a browser.
_LONGEST = 200_000


class FieldMask:
    """Hides the values of fields by their names, wherever they are nested; case does not matter."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = frozenset(name.casefold() for name in names)

    def hide(self, value: Any) -> Any:
        """The value as it may be shown."""
        if not self._names:
            return value
        if isinstance(value, Mapping):
            return {
                name: HIDDEN if str(name).casefold() in self._names else self.hide(inner)
                for name, inner in value.items()
            }
        return [self.hide(inner) for inner in value] if isinstance(value, list | tuple) else value

    def as_json(self, value: Any, indent: int | None = None) -> str:
        """A payload as JSON, without masked values."""
        text = json.dumps(self.hide(value), ensure_ascii=False, indent=indent, default=str)
        return visible(text)

    def raw(self, text: str) -> str:
        """What could not be read as JSON: with masked fields it is not known where they are."""
        return f"{HIDDEN} (it cannot be read, and this page masks fields)" if self._names else visible(text)


def visible(text: str) -> str:
    """A text in which each character can be seen: those that reorder or hide others are escaped.

    Passwords are masked, and what is beyond 200,000 characters is left out.
    """
    text = mask(text)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… and {len(text) - _LONGEST:,} more characters"
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    return f"\\u{ord(character):04x}"
