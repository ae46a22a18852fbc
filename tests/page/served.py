"""A page as its users start it: the command in a process of its own, and a client for it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx

from tests.cli.processes import read_line, running


@dataclass(frozen=True)
class Served:
    """A page that listens."""

    url: str
    #: The link of its start, with the token.
    link: str

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.link).query)["token"][0]

    @contextmanager
    def client(self, token: str | None = None) -> Iterator[httpx.Client]:
        """A client that has logged in with the token of the link, or another one."""
        with httpx.Client(base_url=self.url, follow_redirects=True, timeout=60) as client:
            client.get("/", params={"token": token or self.token}, headers={"accept": "text/html"})
            yield client

    def anonymous(self) -> httpx.Client:
        """A client that has not."""
        return httpx.Client(base_url=self.url, timeout=60)


@contextmanager
def serving(redis_url: str, *words: object, **environment: str) -> Iterator[Served]:
    """`conquiet page` on a free port, ended with SIGTERM."""
    with running(
        "page", "--port", 0, "--json", *words, CONQUIET_REDIS_URL=redis_url, **environment
    ) as process:
        document = json.loads(read_line(process))
        yield Served(document["url"], document["link"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
