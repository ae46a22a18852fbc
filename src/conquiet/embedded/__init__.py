"""A private Valkey or Redis server for laptops, demos and tests; it ends with the process that started it."""

from __future__ import annotations

from conquiet.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
