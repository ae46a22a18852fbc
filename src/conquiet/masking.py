"""Masks secrets: passwords are replaced in every text that conquiet writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"

#: A shorter secret is replaced inside URLs alone: elsewhere it could be part of an ordinary word.
SHORTEST_KNOWN = 5

# Every repetition that can begin anywhere is bounded: the time must not grow with the square of the text.
_PATTERNS = (
    # Up to the last @ of the word: a password that was not percent-encoded may have a / or an @ itself.
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s:/?#@'\"]{0,200}):[^\s'\"]{0,1000}@", re.IGNORECASE),
        rf"\1:{HIDDEN}@",
    ),
    (re.compile(r"((?:password|passwd|secret)\s{0,9}=\s{0,9})[^\s&,;)'\"]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (
        re.compile(r"((?:password|passwd|secret)['\"]\s{0,9}:\s{0,9}(['\"])).{0,1000}?\2", re.IGNORECASE),
        rf"\1{HIDDEN}\2",
    ),
    # A server that does not know HELLO or AUTH repeats their arguments in its error, truncated.
    (
        re.compile(r"([`'\"]AUTH[`'\"]|command [`'\"]AUTH[`'\"]).*", re.IGNORECASE | re.DOTALL),
        rf"\1 {HIDDEN}",
    ),
)

_known: set[str] = set()


def remember_secret(secret: object) -> None:
    """Replace this text from now on, also percent-encoded or escaped."""
    if not isinstance(secret, str) or len(secret) < SHORTEST_KNOWN:
        return
    _known.update(
        {secret, quote(secret), quote(secret, safe=""), quote_plus(secret)}
        | {repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1]}
    )


def remember_url(url: object) -> None:
    """Remember the password of a URL, also of a malformed one."""
    if not isinstance(url, str):
        return
    credentials = url.partition("://")[2].rpartition("@")[0]
    passwords = [credentials.partition(":")[2]]
    passwords += re.findall(r"password=([^&#]*)", url)
    for password in passwords:
        remember_secret(password)
        remember_secret(unquote(password))


def mask(text: str) -> str:
    """The text without passwords: those of URLs, of `password=` and `AUTH`, and all that were remembered.

    Examples:
        >>> mask("cannot open redis://billing:hunter22@shop:6379/0")
        'cannot open redis://billing:***@shop:6379/0'
    """
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text


def shown(value: object) -> str:
    """The `repr` of a value, without passwords; of an object that has none of its own, the class."""
    text = repr(value)
    return f"a {type(value).__name__}" if text.startswith("<") else mask(text)


@contextmanager
def scrubbed() -> Iterator[None]:
    """Mask what is raised in the block."""
    try:
        yield
    except Exception as error:
        scrub(error)
        raise


def scrub(error: BaseException) -> None:
    """Mask an exception in place, with its notes, causes and contexts.

    Examples:
        >>> error = ValueError("cannot open redis://billing:hunter22@shop:6379/0")
        >>> scrub(error)
        >>> error
        ValueError('cannot open redis://billing:***@shop:6379/0')
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        masked = tuple(mask(part) if isinstance(part, str) else part for part in current.args)
        if masked != current.args:
            current.args = masked
        notes = getattr(current, "__notes__", None)
        if notes:
            current.__notes__ = [mask(note) for note in notes]
        waiting += [current.__cause__, current.__context__]
