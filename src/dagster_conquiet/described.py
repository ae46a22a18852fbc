"""What the UI shows of an asset: where its handler is, what it does, what it is made with."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_conquiet.specs import AnySpec

#: As `kinds={"redis"}`, for what takes tags alone.
REDIS_KIND = {"dagster/kind/redis": ""}


def description_of(spec: AnySpec) -> str:
    """The handler's docstring, or else a sentence about the drain."""
    documented = inspect.getdoc(spec.handler) if callable(spec.handler) else None
    return documented or f"What group {spec.group!r} makes of the messages of {spec.source!r}."


def code_references(spec: AnySpec) -> dict[str, Any]:
    """The file and the line of the handler; nothing of one that is imported later."""
    if not callable(spec.handler):
        return {}
    function = inspect.unwrap(spec.handler)
    try:
        path, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        # A builtin, or one that was made at run time.
        return {}
    if path is None:
        return {}
    label = getattr(function, "__qualname__", None)
    reference = dg.LocalFileCodeReference(file_path=str(Path(path).absolute()), line_number=line, label=label)
    return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}
