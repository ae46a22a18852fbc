"""The plain streams of a server: those that are no part of a topic, of a queue of tasks or of conquiet."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from conquiet.queue import Client
from conquiet.queue.connection import as_text, visible_errors

#: A server may have any number of keys: what is found after this time is shown.
_SECONDS = 10.0
_COUNT = 1_000

#: Streams of conquiet's own: partitions, dead letters, queues of tasks with all that is theirs.
_OWN = re.compile(
    r"stream:topic:.*(:p:\d+|:dlq)|conquiet:.*|.*\}:dlq|[^{}]+:\{[^{}]+\}:(\d|events|feed|dlq)"
    r"|[^{}]+:(control|answers:\w+)|[^{}]+:beat:\{schedules\}:.*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PlainStreams:
    """What was found."""

    #: In order.
    names: tuple[str, ...]
    #: Whether all keys of the server were looked at.
    is_complete: bool


def is_plain_stream(name: str) -> bool:
    """Whether a stream of this name is none of conquiet's own."""
    return _OWN.fullmatch(name) is None


def plain_streams(client: Client, *, limit: int = 1_000) -> PlainStreams:
    """Look for them with SCAN, for up to ten seconds; reads nothing of them, and names at most `limit`."""
    found: set[str] = set()
    scanned: Any = client
    ends_at = time.monotonic() + _SECONDS
    with visible_errors("SCAN", stream="(server)", group=None):
        for key in scanned.scan_iter(match="*", count=_COUNT, _type="STREAM"):
            if time.monotonic() > ends_at or len(found) == limit:
                return PlainStreams(tuple(sorted(found)), is_complete=False)
            name = as_text(key)
            if is_plain_stream(name):
                found.add(name)
    return PlainStreams(tuple(sorted(found)), is_complete=True)
