"""What every measurement runs on: one server, one raw client, one database of each kind."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from benchmarks.databases import Database, open_database
from conquiet import EmbeddedServer

#: Far longer than any read of a filled stream waits.
BLOCK_MS = 1_000


class Bench:
    """The servers of one run of the benchmark, from the start of a `with` block to its end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._databases: dict[str, Database] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conquiet-bench-")))
            self.server = stack.enter_context(EmbeddedServer())
            # redis-py's own, with the options of our clients: no retries, the same timeout.
            raw = redis.Redis.from_url(
                self.server.url, retry=Retry(NoBackoff(), 0), socket_timeout=BLOCK_MS / 1000 + 5
            )
            self.client = stack.enter_context(raw)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def database(self, kind: str) -> Database:
        """A private, empty database, made when first asked for.

        Raises:
            UnavailableError: there is no such database on this machine.
        """
        if kind not in self._databases:
            self._databases[kind] = self._stack.enter_context(open_database(kind, self.directory))
        return self._databases[kind]
