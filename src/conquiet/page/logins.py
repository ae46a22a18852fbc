"""Gates of a page that stands alone: a token, users with passwords, or a proxy that has logged them in."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from conquiet.errors import SettingsError
from conquiet.page.identity import LoginCookie, Role, User
from conquiet.page.query import Place

_ITERATIONS = 600_000
#: A wrong password or token is answered after this time.
_WRONG_S = 0.5


class TokenGate:
    """A token that is printed at the start, as Jupyter's: in the link, in the login form, or as a bearer."""

    def __init__(self, cookie: LoginCookie, tokens: Mapping[str, User]) -> None:
        self._cookie = cookie
        self._tokens = tokens

    async def admit(self, request: Request) -> User | Response:
        """The user of the cookie or the token; a browser without either gets the login."""
        bearer = _credentials(request, "bearer")
        if bearer:
            return await self.user_of(bearer) or unauthorized("Bearer")
        given = request.query_params.get("token")
        if given is None:
            return self._cookie.user_of(request) or to_login(request)
        user = await self.user_of(given)
        if user is None:
            return to_login(request)
        # A cookie instead, so that the token does not stay in the address; without a host: behind a proxy
        # that ends TLS this is another scheme than the browser's.
        response = RedirectResponse(Place.of(request).here(token=None), status_code=303)
        self._cookie.give(request, response, user)
        return response

    async def user_of(self, token: str) -> User | None:
        """The user of a token, if it is one."""
        for known, user in self._tokens.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                return user
        await asyncio.sleep(_WRONG_S)
        return None


@dataclass(frozen=True, slots=True)
class PageUser:
    """One line of the users' file."""

    user: User
    password_hash: str


class BasicGate:
    """Users with passwords of their own, by HTTP's basic authentication; behind TLS."""

    def __init__(self, users: Mapping[str, PageUser]) -> None:
        self._users = users
        #: To check a password takes a tenth of a second of a core: one at a time, also of those unknown.
        self._checking = asyncio.Lock()
        self._nobody = hash_password(secrets.token_hex(16))
        #: Hashes of passwords that were right: to derive one again costs a tenth of a second.
        self._right: dict[str, bytes] = {}
        self._key = secrets.token_bytes(32)

    async def admit(self, request: Request) -> User | Response:
        """The user of the request's name and password."""
        try:
            text = base64.b64decode(_credentials(request, "basic"), validate=True).decode()
        except (binascii.Error, ValueError):
            return unauthorized("Basic")
        name, _, password = text.partition(":")
        quick, known = hmac.digest(self._key, password.encode(), "sha256"), self._users.get(name)
        if known is not None and hmac.compare_digest(self._right.get(name, b""), quick):
            return known.user
        password_hash = self._nobody if known is None else known.password_hash
        async with self._checking:
            is_right = await asyncio.to_thread(is_password, password, password_hash)
        if known is not None and is_right:
            self._right[name] = quick
            return known.user
        await asyncio.sleep(_WRONG_S)
        return unauthorized("Basic")


class ForwardedGate:
    """A proxy has logged the user in, and says who it is in a header; only this proxy is believed."""

    def __init__(self, header: str, proxies: frozenset[str], operators: frozenset[str]) -> None:
        self._header = header
        self._proxies = proxies
        self._operators = operators

    async def admit(self, request: Request) -> User | Response:
        """The user of the header, if it comes from the proxy."""
        names = request.headers.getlist(self._header)
        is_proxy = request.client is not None and request.client.host in self._proxies
        if not is_proxy or len(names) != 1 or not names[0].strip():
            return Response("Not authenticated", status_code=401)
        name = names[0].strip()
        is_operator = name in self._operators or "*" in self._operators
        return User(name, "operator" if is_operator else "viewer")


def hash_password(password: str) -> str:
    """What the users' file has of a password."""
    salt = secrets.token_hex(16)
    derived = hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), _ITERATIONS).hex()
    return f"pbkdf2${_ITERATIONS}${salt}${derived}"


def is_password(password: str, password_hash: str) -> bool:
    """Whether a password is the one of a hash."""
    _, iterations, salt, derived = password_hash.split("$")
    found = hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), int(iterations)).hex()
    return hmac.compare_digest(found, derived)


def read_users(path: Path) -> dict[str, PageUser]:
    """The users of a file: on each line name:role:hash, as `conquiet page --hash-password` prints it.

    Raises:
        SettingsError: the file cannot be read, or a line is something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingsError(f"the file of users {path} cannot be read: {error.strerror}") from error
    users: dict[str, PageUser] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        role, _, hashed = rest.partition(":")
        parts = hashed.split("$")
        if not name or role not in get_args(Role) or len(parts) != 4 or parts[0] != "pbkdf2":
            raise SettingsError(f"line {number} of {path} must be name:viewer:hash or name:operator:hash")
        users[name] = PageUser(User(name, role), hashed)  # type: ignore[arg-type]  # one of them
    if not users:
        raise SettingsError(f"the file of users {path} has no user")
    return users


def to_login(request: Request) -> Response:
    """A person at a browser logs in; a program gets 401."""
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        place = Place.of(request)
        wanted = place.here(token=None).removeprefix(place.root)
        return RedirectResponse(place.link("/login", next=wanted if wanted != "/" else None), status_code=303)
    return unauthorized("Bearer")


def unauthorized(scheme: str) -> Response:
    """401, with what to authenticate with."""
    headers = {"WWW-Authenticate": f'{scheme} realm="conquiet", charset="UTF-8"'}
    return Response("Not authenticated", status_code=401, headers=headers)


def _credentials(request: Request, scheme: str) -> str:
    given, _, credentials = request.headers.get("authorization", "").partition(" ")
    return credentials.strip() if given.lower() == scheme else ""
