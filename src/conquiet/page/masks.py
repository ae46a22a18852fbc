"""What of a message is shown: values of masked fields are not, passwords never, and nothing is invisible."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from conquiet.masking import HIDDEN, mask

#: More of one text is not sent to a browser.
_LONGEST = 200_000
_MASKED_BEHIND = 2_000
#: Categories of Unicode: controls, formats, surrogates, private use, separators of lines and paragraphs.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


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

    def as_json(self, value: Any, indent: int | None = None, longest: int = _LONGEST) -> str:
        """A payload as JSON, without masked values."""
        try:
            text = json.dumps(self.hide(value), ensure_ascii=False, indent=indent, default=str)
        except RecursionError:
            return "It is nested too deeply to be shown."
        return visible(text, longest)

    def raw(self, text: str) -> str:
        """What could not be read as JSON: with masked fields it is not known where they are."""
        return f"{HIDDEN} (it cannot be read, and this page masks fields)" if self._names else visible(text)


def visible(text: str, longest: int = _LONGEST) -> str:
    """A text in which each character can be seen: those that reorder or hide others are escaped.

    Passwords are masked, and what is beyond 200,000 characters is left out.
    """
    left = len(text) - longest
    # A little more: a password at the end is known by what comes behind it.
    text = mask(text[: longest + _MASKED_BEHIND])
    if left > 0:
        text = f"{text[:longest]}… and {left:,} more characters"
    hidden = {
        ord(one): f"\\u{ord(one):04x}"
        for one in set(text)
        if one not in "\n\t" and unicodedata.category(one) in _INVISIBLE
    }
    return text.translate(hidden) if hidden else text
