"""What the UI shows of an asset: where its handler is, what it does, what it is made with."""

from __future__ import annotations

import ast
import inspect
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_conquiet.specs import AnySpec, TopicDrainSpec

#: What the UI shows an icon of.
KINDS = frozenset({"redis"})
#: The same for what takes tags alone.
KIND_TAGS = {"dagster/kind/redis": ""}
#: The tags of `tags_of`.
WORK_TAGS = ("conquiet/stream", "conquiet/topic", "conquiet/group")


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a handler is written, and its docstring."""

    path: str
    line: int
    label: str
    docstring: str | None


def description_of(spec: AnySpec) -> str:
    """The handler's docstring, or else a sentence about the drain."""
    if callable(spec.handler):
        documented = inspect.getdoc(spec.handler)
    else:
        source = _source_of(spec)
        documented = None if source is None else source.docstring
    return documented or f"What group {spec.group!r} makes of the messages of {spec.source!r}."


def code_references(spec: AnySpec) -> dict[str, Any]:
    """The file and the line of the handler."""
    source = _source_of(spec)
    return {} if source is None else _references_to(source)


def code_references_of_caller(function: Any = None) -> dict[str, Any]:
    """The function that an asset is made with, if there is one, or else the line that defines the asset."""
    if callable(function) and (source := _source_of_function(function)):
        return _references_to(source)
    frame = sys._getframe(2)
    path = str(Path(frame.f_code.co_filename).absolute())
    return _references_to(_Source(path, frame.f_lineno, "definition", None))


def _references_to(source: _Source) -> dict[str, Any]:
    with warnings.catch_warnings():
        # Marked beta, and there is nothing else; users cannot do anything about it.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        place = dg.LocalFileCodeReference(file_path=source.path, line_number=source.line, label=source.label)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[place])}


def _source_of(spec: AnySpec) -> _Source | None:
    if isinstance(spec.handler, str):
        return _source_by_name(*spec.handler.split(":"))
    return None if spec.handler is None else _source_of_function(spec.handler)


def _source_of_function(handler: Callable[..., Any]) -> _Source | None:
    function = inspect.unwrap(handler)
    try:
        path, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        # A builtin, or one that was made at run time.
        return None
    label = getattr(function, "__qualname__", type(function).__name__)
    return None if path is None else _Source(str(Path(path).absolute()), line, label, None)


def _source_by_name(module: str, name: str) -> _Source | None:
    """Read from the file: definitions load without the imports of a handler that is named."""
    package = module.rpartition(".")[0]
    if package and package not in sys.modules:
        # To find it, Python would import the packages that it is in.
        return None
    try:
        found = find_spec(module)
        path = Path(found.origin or "") if found else Path()
        body = ast.parse(path.read_bytes()).body
    except (ImportError, OSError, SyntaxError, ValueError):
        # The step says so.
        return None
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return _Source(str(path), statement.lineno, name, ast.get_docstring(statement))
    return None


def names_of(spec: AnySpec) -> dict[str, str]:
    """The stream or topic, and the group, as metadata of a definition."""
    source = "topic" if isinstance(spec, TopicDrainSpec) else "stream"
    return {source: spec.source, "group": spec.group}


def tags_of(spec: AnySpec) -> dict[str, str]:
    """The same as tags of a job, and so of all its runs, however they are started."""
    return {f"conquiet/{name}": value for name, value in names_of(spec).items()}
