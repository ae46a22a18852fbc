"""Which metrics and labels a PromQL expression names: as much of the language as deploy/ needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<range>\[[^\]]*\])
    | (?P<number>\d[\w.]*)
    | (?P<word>[a-zA-Z_:][\w:]*)
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){},=<>])
    """,
    re.VERBOSE,
)
_GROUPINGS = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_OPERATORS = frozenset(("and", "or", "unless", "bool", "offset"))


@dataclass(slots=True)
class Named:
    """What one expression names."""

    #: Metrics, each with the labels that its selector asks for.
    metrics: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    #: Labels that results are grouped or matched by.
    groupings: set[str] = field(default_factory=set)


def named_in(expression: str) -> Named:
    """Read an expression.

    Raises:
        ValueError: a character that is none of the language.
    """
    named, tokens = Named(), list(_tokens(expression))
    place = 0
    while place < len(tokens):
        kind, text = tokens[place]
        after = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        place += 1
        if kind != "word" or text in _OPERATORS:
            continue
        if text in _GROUPINGS:
            groupings, place = _words_until(")", tokens, place)
            named.groupings |= groupings
        elif after == "{":
            labels, place = _matched_until_end(tokens, place)
            named.metrics.append((text, labels))
        elif after != "(" and after not in _GROUPINGS:
            named.metrics.append((text, frozenset()))
    return named


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(expression):
        match = _TOKEN.match(expression, place)
        if match is None:
            raise ValueError(f"not PromQL at {place}: {expression[place:]!r}")
        place = match.end()
        if match.lastgroup != "space":
            yield str(match.lastgroup), match.group()


def _words_until(end: str, tokens: list[tuple[str, str]], place: int) -> tuple[set[str], int]:
    words = set()
    while tokens[place][1] != end:
        if tokens[place][0] == "word":
            words.add(tokens[place][1])
        place += 1
    return words, place + 1


def _matched_until_end(tokens: list[tuple[str, str]], place: int) -> tuple[frozenset[str], int]:
    words, after = _words_until("}", tokens, place)
    return frozenset(words), after
