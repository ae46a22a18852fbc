"""Serving: a page of its own, at an address, until a signal."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from conquiet.errors import SettingsError
from conquiet.page.identity import Gate, LoginCookie, Signer, User
from conquiet.page.logins import BasicGate, ForwardedGate, TokenGate, read_users
from conquiet.settings import Settings

#: A shorter token can be guessed.
_SHORTEST_TOKEN = 16
#: After a signal, requests that are being answered have so long.
_GRACE_S = 10


@dataclass(frozen=True, slots=True)
class Entrance:
    """How users get in: the gate, and what the link of the start has for it."""

    gate: Gate
    #: Empty if nothing of the kind is needed.
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the page listens."""

    address: str
    port: int
    certfile: Path | None = None
    keyfile: Path | None = None
    #: The path below which a proxy serves the page.
    root_path: str = ""


def entrance_of(settings: Settings, secret: str) -> Entrance:
    """The entrance that the settings ask for: a token, unless they name users or a proxy's header.

    Raises:
        SettingsError: they name both, or the users cannot be read.
    """
    ways = [name for name in ("page_users", "page_user_header") if getattr(settings, name)]
    if len(ways) > 1 or (ways and (settings.page_token or settings.page_viewer_token)):
        raise SettingsError(
            "page_users, page_user_header and tokens exclude each other: users get in one way"
        )
    if settings.page_users:
        return Entrance(BasicGate(read_users(Path(settings.page_users))))
    if settings.page_user_header:
        proxies, operators = names_in(settings.page_proxies), names_in(settings.page_operators)
        return Entrance(ForwardedGate(settings.page_user_header, proxies, operators))
    for name in ("page_token", "page_viewer_token"):
        if 0 < len(getattr(settings, name) or "") < _SHORTEST_TOKEN:
            raise SettingsError(f"{name} must have {_SHORTEST_TOKEN} characters or more", key=name)
    token = settings.page_token or secrets.token_urlsafe(24)
    tokens = {token: User("operator", "operator")}
    if settings.page_viewer_token:
        tokens[settings.page_viewer_token] = User("viewer", "viewer")
    # A token that is in the settings is known to those who need it, and is not printed.
    return Entrance(TokenGate(LoginCookie(Signer(secret)), tokens), "" if settings.page_token else token)


def names_in(text: str) -> frozenset[str]:
    """Names with commas between them."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def serve(app: Starlette, listening: Listening, on_start: Callable[[str], None]) -> None:
    """Listen until SIGINT or SIGTERM; `on_start` is called with the page's address.

    Raises:
        OSError: the address or the port cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in listening.address else socket.AF_INET
    with socket.create_server((listening.address, listening.port), family=family) as opened:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            # What a proxy says is for the gate to believe, or not.
            proxy_headers=False,
            root_path=listening.root_path,
            ssl_certfile=listening.certfile,
            ssl_keyfile=listening.keyfile,
            timeout_graceful_shutdown=_GRACE_S,
        )
        scheme = "http" if listening.certfile is None else "https"
        # A browser on this machine cannot go to the address that means all of them.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening.address, listening.address)  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        url = f"{scheme}://{host}:{opened.getsockname()[1]}"
        _Server(config, app, lambda: on_start(url)).run(sockets=[opened])


class _Server(uvicorn.Server):
    """Ends open event streams with the signal, since it waits for them; a second signal does not wait."""

    def __init__(self, config: uvicorn.Config, app: Starlette, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Not before: a signal that follows on what is printed ends it as any later one.
        self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.end_streams()
        # Not uvicorn's own, which raises the signal once more at the end: the command ends by itself.
        self.force_exit = self.should_exit
        self.should_exit = True
