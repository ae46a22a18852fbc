"""Dagster Pipes over a stream; the external process needs `dagster-pipes` and `conquiet`, not Dagster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_conquiet.pipes.reader import RedisStreamMessageReader
    from dagster_conquiet.pipes.writer import RedisStreamMessageWriter

__all__ = ["RedisStreamMessageReader", "RedisStreamMessageWriter"]

# Loaded on first use: the writer's side has no Dagster to import.
_HOME_OF = {
    "RedisStreamMessageReader": "dagster_conquiet.pipes.reader",
    "RedisStreamMessageWriter": "dagster_conquiet.pipes.writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
