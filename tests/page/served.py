"""A page as its users start it: the command in a process of its own, and a client for it."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import uvicorn

from conquiet.page import PageSettings, Site, User, build_page
from conquiet.page.identity import LoginCookie, Signer
from conquiet.page.logins import TokenGate
from conquiet.tasks import TaskApp
from tests.cli.processes import read_line, running

#: The app of the shop: its tasks say into which queue they go.
APP = f"{Path(__file__).with_name('shop_tasks.py')}:app"


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
def serving_here(url: str, settings: PageSettings, open_app: Callable[[], TaskApp]) -> Iterator[Served]:
    """The same page in a thread of this process, which begins at once."""
    token = secrets.token_urlsafe(16)
    gate = TokenGate(LoginCookie(Signer(settings.secret)), {token: User("operator", "operator")})
    app = build_page(Site(lambda: url, settings, open_app), gate)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        address = f"http://127.0.0.1:{opened.getsockname()[1]}"
        try:
            yield Served(address, f"{address}/?token={token}")
        finally:
            app.state.end_streams()
            server.should_exit = True
            thread.join()


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
