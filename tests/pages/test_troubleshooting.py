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
