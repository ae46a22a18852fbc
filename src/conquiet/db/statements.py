"""What the text of an SQL statement does to its transaction; quotes, comments and bodies are not searched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

#: "controls": begins or ends one. "commits": commits implicitly. "may end": runs what only the server knows.
#: "savepoint": goes back to a savepoint, or releases one.
Effect = Literal["controls", "commits", "may end", "savepoint"]

_FIRST_WORD = re.compile(r"[\s;(]*(\w+)")
_CONTROLS = frozenset({"COMMIT", "END", "ABORT", "BEGIN", "XA"})
_MYSQL_COMMITS = frozenset(
    {
        *("ALTER", "ANALYZE", "CACHE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "INSTALL", "LOCK"),
        *("OPTIMIZE", "RENAME", "REPAIR", "RESET", "REVOKE", "TRUNCATE", "UNINSTALL", "UNLOCK"),
    }
)
_FIRST_WORDS = _CONTROLS | {"START", "PREPARE", "ROLLBACK"}
_MYSQL_FIRST_WORDS = _FIRST_WORDS | _MYSQL_COMMITS | {"CALL", "EXECUTE", "LOAD", "RELEASE", "SET"}
#: What CREATE makes; routines have a body of statements of their own, from BEGIN to END.
_ROUTINES = frozenset({"TRIGGER", "FUNCTION", "PROCEDURE", "EVENT"})
_CREATED = _ROUTINES | {"TABLE", "VIEW", "INDEX", "SEQUENCE", "TYPE", "SCHEMA"}

_TOKEN = re.compile(
    r"""
    (?P<comment>--[^\n]*|/\*)
    |(?P<escaped>[eE]'[^'\\]*(?:\\.[^'\\]*)*')
    |(?P<quoted>'[^']*'|"[^"]*"|`[^`]*`)
    |(?P<dollar>\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
# It executes what is in /*! … */ and /*M! … */.
_MYSQL_TOKEN = re.compile(
    r"""
    (?P<comment>--(?=\s|$)[^\n]*|\#[^\n]*|/\*(?!M?!))
    |(?P<quoted>'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"|`[^`]*`)
    |(?P<executed>/\*M?!\d*)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_LONGEST_REMEMBERED = 2_000
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def effect_on_transaction(statement: str, is_mysql: bool) -> Effect | None:
    """The strongest effect of one or more statements, `None` for most."""
    if len(statement) <= _LONGEST_REMEMBERED:
        return _remembered_effect(statement, is_mysql)
    return _strongest_effect(statement, is_mysql)


def _strongest_effect(statement: str, is_mysql: bool) -> Effect | None:
    first = _FIRST_WORD.match(statement)
    known = _MYSQL_FIRST_WORDS if is_mysql else _FIRST_WORDS
    is_plain = ";" not in statement and not (is_mysql and "/*" in statement)
    # Nearly all are one statement that starts with another word, and not with a comment.
    if is_plain and first is not None and first[1].upper() not in known:
        return None
    effects = {_effect(words, is_mysql=is_mysql) for words in _statements(statement, is_mysql=is_mysql)}
    order: tuple[Effect, ...] = ("controls", "commits", "may end", "savepoint")
    return next((effect for effect in order if effect in effects), None)


#: A handler executes the same few texts with every message.
_remembered_effect = lru_cache(maxsize=1_000)(_strongest_effect)


def _effect(words: list[str], *, is_mysql: bool) -> Effect | None:
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first in _CONTROLS or (first in ("START", "PREPARE") and second == "TRANSACTION"):
        return "controls"
    if first == "ROLLBACK":
        # ROLLBACK [WORK | TRANSACTION] TO [SAVEPOINT] name
        return "savepoint" if "TO" in words[1:3] else "controls"
    if not is_mysql:
        return None
    if first in _MYSQL_COMMITS:
        is_harmless = (first in ("CREATE", "DROP") and second == "TEMPORARY") or (
            first == "LOCK" and second not in ("TABLE", "TABLES")
        )
        return None if is_harmless else "commits"
    if (first, second) == ("LOAD", "INDEX") or (
        first == "SET" and ("AUTOCOMMIT" in words or second == "PASSWORD")
    ):
        return "commits"
    return {"CALL": "may end", "EXECUTE": "may end", "RELEASE": "savepoint"}.get(first)  # type: ignore[return-value]


def _statements(text: str, *, is_mysql: bool) -> Iterator[list[str]]:
    """The words of each statement, in upper case, without what is quoted or a comment."""
    words: list[str] = []
    depth = 0
    for kind, token in _tokens(text, is_mysql=is_mysql):
        if kind == "end":
            if words and depth <= 0:
                yield words
                words, depth = [], 0
            continue
        words.append(token.upper())
        if words[0] == "CREATE" and _created(words) in _ROUTINES:
            depth += (words[-1] in ("BEGIN", "CASE")) - (words[-1] == "END")
    if words:
        yield words


def _created(words: list[str]) -> str | None:
    # CREATE OR REPLACE DEFINER = root @ localhost TRIGGER …
    return next((word for word in words[1:8] if word in _CREATED), None)


def _tokens(text: str, *, is_mysql: bool) -> Iterator[tuple[str, str]]:
    pattern, position = _MYSQL_TOKEN if is_mysql else _TOKEN, 0
    while (token := pattern.search(text, position)) is not None:
        position = token.end()
        if token.lastgroup == "comment" and token.group() == "/*":
            position = _end_of_comment(text, position, is_nested=not is_mysql)
        elif token.lastgroup in ("word", "end"):
            yield token.lastgroup, token.group()


def _end_of_comment(text: str, position: int, *, is_nested: bool) -> int:
    depth = 1
    while depth and (edge := _COMMENT_EDGE.search(text, position)) is not None:
        position = edge.end()
        if edge.group() == "*/":
            depth -= 1
        elif is_nested:
            # In PostgreSQL; SQLite's comments are not nested, and its drivers run one statement only.
            depth += 1
    return position if depth == 0 else len(text)
