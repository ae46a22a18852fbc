"""Each message of docs/troubleshooting.md is one that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.packaging.environments import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = [
    *re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE),
    *re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE),
]
#: What stops a user in the first hour; each has its place on the page, with these words.
OF_THE_FIRST_HOUR = [
    "url must be a str",
    "url must start with",
    "client must be a redis.Redis or RedisCluster, got",
    "client must be a redis.Redis or RedisCluster, not one of redis.asyncio",
    "config must be a QueueConfig, got",
    "topic must be a Topic or the name of one",
    "queue must be a RedisStreamsQueue, got",
    "a DbSession has no",
    "which JSON does not have",
    "it is closed: close() was called",
    "handler must be callable as",
    "no connection to Redis:",
    "nothing listens at this host and port",
    "the server wants a password",
    "the server does not speak TLS at this port",
    "if it expects TLS",
    ": there is no",
    "must be a tuple of exception classes",
    "engine must be a SQLAlchemy Engine, not None",
]


@pytest.mark.parametrize("words", OF_THE_FIRST_HOUR)
def test_the_page_has_what_stops_a_user_in_the_first_hour(words: str):
    assert [message for message in MESSAGES if words in message]


def sentences_in(source: str) -> Iterator[str]:
    """The texts of a module, with "…" for what is filled in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def all_sentences() -> list[str]:
    return [
        sentence.replace("`", "")
        for path in sorted((ROOT / "src").rglob("*.py"))
        for sentence in sentences_in(path.read_text())
    ]


def test_the_page_has_its_messages():
    assert len(MESSAGES) > 40
    assert len(MESSAGES) == len(set(MESSAGES))


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_has_the_message(message: str):
    pieces = [piece.strip(" ") for piece in re.split("…+", message)]
    pattern = re.compile(".*?".join(re.escape(piece) for piece in pieces if piece), re.DOTALL)

    assert max(len(piece) for piece in pieces) > 10
    assert any(pattern.search(sentence) for sentence in all_sentences()), message
