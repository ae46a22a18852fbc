"""A private server that is full: at its maxmemory, and evicting nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import redis

from conquiet import EmbeddedServer, QueueError
from tests.services import redis_binary, unavailable

#: Left for messages when the server begins to be filled.
_ROOM = 2 << 20

#: What a full server refuses for certain: the buffers of clients grow and shrink by less than that.
LARGE = "x" * 1_000_000


@contextmanager
def server_of_its_own(kind: str) -> Iterator[redis.Redis]:
    """A server that no other test shares: a full one would refuse their writes."""
    binary = redis_binary(kind)
    if binary is None:
        unavailable("redis", f"no binary for {kind}")
    with EmbeddedServer(binary=binary) as server, redis.Redis.from_url(server.url) as client:
        yield client


def fill(client: redis.Redis, send: Callable[[int, str], object]) -> int:
    """Let a producer send until it is refused, and return how many messages were accepted."""
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", used + _ROOM)
    sent = 0
    # Smaller ones at the end, so that little is left that anything else could use.
    for text in ("x" * 8_000, ""):
        try:
            for number in count(sent):
                send(number, text)
                sent = number + 1
        except QueueError as error:
            if "The server is full" not in str(error):
                raise
    return sent
