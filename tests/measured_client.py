"""A client that knows how large the replies were that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis


class MeasuredClient(redis.Redis):
    """Remembers the bytes of each reply."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sizes: list[int] = []

    def execute_command(self, *command: Any, **options: Any) -> Any:
        """As every client, and adds what is in the reply."""
        reply = super().execute_command(*command, **options)
        self.sizes.append(_size(reply))
        return reply


def _size(reply: Any) -> int:
    if isinstance(reply, bytes | str):
        return len(reply)
    if isinstance(reply, Mapping):
        return sum(_size(name) + _size(value) for name, value in reply.items())
    return sum(map(_size, reply)) if isinstance(reply, list | tuple) else 0
