"""What the text of an SQL statement does to its transaction; quotes, comments and bodies are not searched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Literal

#: "controls": begins or ends one. "commits": commits implicitly. "may end": runs what only the server knows.
#: "savepoint": goes back to a savepoint, or releases one.
Effect = Literal["controls", "commits", "may end", "savepoint"]

_MYSQL = ("mysql", "mariadb")
_FIRST_WORD = re.compile(r"[\s;(]*(\w+)")
_CONTROLS = frozenset({"COMMIT", "END", "ABORT", "BEGIN", "XA"})
_FIRST_WORDS = _CONTROLS | {"START", "PREPARE", "ROLLBACK"}
_MYSQL_COMMITS = frozenset(
    {
        *("ALTER", "ANALYZE", "CACHE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "INSTALL", "LOCK"),
        *("OPTIMIZE", "RENAME", "REPAIR", "RESET", "REVOKE", "TRUNCATE", "UNINSTALL"),
    }
)
_MYSQL_HARMLESS = frozenset(
    {
        *("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES", "TABLE", "SAVEPOINT"),
        *("SHOW", "DESCRIBE", "DESC", "EXPLAIN", "USE", "DO", "HANDLER", "PREPARE", "DEALLOCATE"),
    }
)
#: They may end the transaction, as may all that are not known here, but those may have a body of statements.
_MYSQL_CALLS = frozenset({"CALL", "EXECUTE", "LOAD", "UNLOCK"})

_TOKEN = re.compile(
    r"""
    (?P<comment>--[^\n]*|/\*)
    |(?P<escaped>[eE]'(?:[^'\\]++|\\.|''|'\s*\n\s*')*+')
    |(?P<quoted>'[^']*'|"[^"]*"|`[^`]*`)
    |(?P<dollar>\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
# It executes what is in /*! … */ and /*M! … */; @name is the user's variable, @@name the server's.
_MYSQL_TOKEN = re.compile(
    r"""
    (?P<comment>--(?=\s|$)[^\n]*|\#[^\n]*|/\*(?!M?!))
    |(?P<quoted>'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")
    |(?P<executed>/\*M?!\d*)
    |(?P<variable>@@|@[\w$.]+)
    |(?P<word>[^\W\d][\w$]*|=|`[^`]*`)
    |(?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_LONGEST_REMEMBERED = 2_000
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def effect_on_transaction(statement: str, dialect: str) -> Effect | None:
    """The strongest effect of one or more statements, `None` for most.

    Args:
        dialect: SQLAlchemy's name of the database.
    """
    if len(statement) <= _LONGEST_REMEMBERED:
        return _remembered_effect(statement, dialect)
    return _strongest_effect(statement, dialect)


def _strongest_effect(text: str, dialect: str) -> Effect | None:
    first, is_mysql = _FIRST_WORD.match(text), dialect in _MYSQL
    is_plain = ";" not in text and not (is_mysql and "/*" in text)
    # Nearly all are one statement that starts with another word, and not with a comment.
    if is_plain and first is not None:
        word = first[1].upper()
        if word in _MYSQL_HARMLESS if is_mysql else word not in _FIRST_WORDS:
            return None
    effects = _mysql_effects(text) if is_mysql else map(_effect, _statements(text, dialect))
    found: set[Effect | None] = set()
    for effect in effects:
        found.add(effect)
        if effect in ("controls", "commits"):
            return effect
    return "may end" if "may end" in found else "savepoint" if "savepoint" in found else None


#: A handler executes the same few texts with every message.
_remembered_effect = lru_cache(maxsize=1_000)(_strongest_effect)


def _effect(words: list[str]) -> Effect | None:
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first in _CONTROLS or (first in ("START", "PREPARE") and second == "TRANSACTION"):
        return "controls"
    if first == "ROLLBACK":
        # ROLLBACK [WORK | TRANSACTION] TO [SAVEPOINT] name
        return "savepoint" if "TO" in words[1:3] else "controls"
    return None


def _mysql_effects(text: str) -> Iterator[Effect | None]:
    for words in _statements(text, "mysql"):
        is_block = words[:2] == ["BEGIN", "NOT"]
        effect = "may end" if is_block else _effect(words) or _mysql_effect(words)
        yield effect
        if effect == "may end" and words[0] not in _MYSQL_CALLS:
            # IF … END IF, BEGIN NOT ATOMIC … END and the like: its body has the next semicolons.
            return


def _mysql_effect(words: list[str]) -> Effect | None:
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first == "SET":
        if second == "STATEMENT" and "FOR" in words:
            # MariaDB's SET STATEMENT name = value FOR statement
            rest = words[words.index("FOR") + 1 :]
            return (_effect(rest) or _mysql_effect(rest)) if rest else None
        is_commit = ("AUTOCOMMIT", "=") in pairwise(words) or second in ("PASSWORD", "DEFAULT")
        return "commits" if is_commit else None
    if first in _MYSQL_COMMITS:
        is_harmless = (
            (first in ("CREATE", "DROP") and "TEMPORARY" in words[1:4])
            or (first, second) == ("DROP", "PREPARE")
            or (first == "LOCK" and second not in ("TABLE", "TABLES"))
            # MariaDB's ANALYZE SELECT … executes and explains.
            or (first == "ANALYZE" and not {"TABLE", "TABLES"} & set(words[1:3]))
        )
        return None if is_harmless else "commits"
    if first in _MYSQL_HARMLESS:
        return None
    return "savepoint" if first == "RELEASE" else "may end"


def _statements(text: str, dialect: str) -> Iterator[list[str]]:
    """The words of each statement, in upper case, without what is quoted or a comment."""
    words: list[str] = []
    depth = 0
    for kind, token in _tokens(text, dialect):
        if kind == "end":
            if words and dialect == "sqlite":
                # Its driver executes one statement only; other semicolons are those of a trigger's body.
                break
            if words and depth <= 0:
                yield words
                words, depth = [], 0
            continue
        words.append(token.strip("`").upper())
        # PostgreSQL's bodies are quoted, but for those of CREATE FUNCTION … BEGIN ATOMIC … END.
        is_body = words[0] == "CREATE" and (depth > 0 or words[-2:] == ["BEGIN", "ATOMIC"])
        if is_body:
            depth += (words[-1] in ("ATOMIC", "CASE")) - (words[-1] == "END")
    if words:
        yield words


def _tokens(text: str, dialect: str) -> Iterator[tuple[str, str]]:
    pattern, position = _MYSQL_TOKEN if dialect in _MYSQL else _TOKEN, 0
    while (token := pattern.search(text, position)) is not None:
        position = token.end()
        if token.lastgroup == "comment" and token.group() == "/*":
            position = _end_of_comment(text, position, is_nested=dialect == "postgresql")
        elif token.lastgroup in ("word", "end"):
            yield token.lastgroup, token.group()


def _end_of_comment(text: str, position: int, *, is_nested: bool) -> int:
    depth = 1
    while depth and (edge := _COMMENT_EDGE.search(text, position)) is not None:
        position = edge.end()
        if edge.group() == "*/":
            depth -= 1
        elif is_nested:
            depth += 1
    return position if depth == 0 else len(text)
