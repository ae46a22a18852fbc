"""What every measurement runs on: one server, one raw client, one database of each kind."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from benchmarks.databases import Database, open_database
from conquiet import EmbeddedServer
from conquiet.queue import open_client

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
            # With the options of our own clients: no retries, the same timeouts, the same protocol.
            self.client = stack.enter_context(open_client(self.server.url, block_ms=BLOCK_MS))
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
