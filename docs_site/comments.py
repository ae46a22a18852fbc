"""The `#:` comments above fields are their documentation, which mkdocstrings does not know by itself."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import griffe


class CommentsAsDocstrings(griffe.Extension):
    """Gives each field of a class the comment above it as its docstring."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Called by griffe for each field that it finds."""
        if attr.docstring is None and isinstance(node, ast.AnnAssign) and isinstance(attr.filepath, Path):
            comment = comment_above(_lines(attr.filepath), node.lineno)
            if comment:
                attr.docstring = griffe.Docstring(comment, lineno=node.lineno, parent=attr)


def comment_above(lines: list[str], number: int) -> str:
    """The `#:` lines directly above a line, which is counted from 1."""
    above: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#:"):
            break
        above.append(line.strip().removeprefix("#:").strip())
    return " ".join(reversed(above))


@cache
def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
