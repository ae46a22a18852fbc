"""Who asks: users, their roles, and the gate that every request passes."""

from __future__ import annotations

import hmac
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, Protocol, get_args

from starlette.requests import Request
from starlette.responses import Response

#: "viewer" sees everything, "operator" changes it, too.
Role = Literal["viewer", "operator"]

_COOKIE = "conquiet_user"
_FORM_COOKIE = "conquiet_form"
#: How long a login lasts.
_LOGIN_S = 12 * 3600


@dataclass(frozen=True, slots=True)
class User:
    """A user of the page.

    Examples:
        >>> User("ann", "operator").may_operate, User("bob", "viewer").may_operate
        (True, False)
    """

    name: str
    role: Role

    @property
    def may_operate(self) -> bool:
        return self.role == "operator"


class Gate(Protocol):
    """Finds out who asks.

    Examples:
        >>> class Everyone:
        ...     async def admit(self, request):
        ...         return User("someone", "viewer")
        >>> gate: Gate = Everyone()
    """

    async def admit(self, request: Request) -> User | Response:
        """The user; for a request that may not pass, the response instead: 401, or the login."""


class Signer:
    """Signs what the browser keeps, so that it comes back as it was given."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def sign(self, purpose: str, text: str) -> str:
        """A signature that is good for one purpose."""
        return hmac.new(self._secret, f"{purpose}\0{text}".encode(), sha256).hexdigest()

    def is_signed(self, purpose: str, text: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(purpose, text).encode(), signature.encode())


class LoginCookie:
    """Keeps who has logged in; HttpOnly, SameSite=Lax, for half a day."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def user_of(self, request: Request) -> User | None:
        """The user of a cookie that was given by this page and has not expired."""
        body, _, signature = request.cookies.get(cookie_name(request, _COOKIE), "").partition(".")
        if not body or not self._signer.is_signed("login", body, signature):
            return None
        name, role, expires = json.loads(urlsafe_b64decode(body))
        return User(name, role) if role in get_args(Role) and time.time() < expires else None

    def give(self, request: Request, response: Response, user: User) -> None:
        """Have the browser keep the user."""
        document = json.dumps([user.name, user.role, time.time() + _LOGIN_S])
        body = urlsafe_b64encode(document.encode()).decode()
        value = f"{body}.{self._signer.sign('login', body)}"
        set_cookie(request, response, _COOKIE, value, max_age=_LOGIN_S)

    def take(self, request: Request, response: Response) -> None:
        """Log out."""
        set_cookie(request, response, _COOKIE, "", max_age=0)


class FormTokens:
    """Proves that a form was sent from a page of ours: its token belongs to the user and the browser."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def browser_of(self, request: Request) -> str:
        """What this browser is known by; a new one gets it with the response, see `remember`."""
        known = request.cookies.get(cookie_name(request, _FORM_COOKIE), "")
        return known if len(known) == 32 and known.isalnum() else secrets.token_hex(16)

    def remember(self, request: Request, response: Response, browser: str) -> None:
        """Have the browser keep what it is known by."""
        if request.cookies.get(cookie_name(request, _FORM_COOKIE)) != browser:
            set_cookie(request, response, _FORM_COOKIE, browser, same_site="strict")

    def token(self, user: User, browser: str) -> str:
        """The token of this user's forms in this browser."""
        return self._signer.sign("form", f"{user.name}\0{user.role}\0{browser}")

    def is_ours(self, request: Request, user: User, token: str) -> bool:
        """Whether a form was sent from one of our pages to this browser's user."""
        browser = request.cookies.get(cookie_name(request, _FORM_COOKIE), "")
        if not browser or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        return hmac.compare_digest(self.token(user, browser).encode(), token.encode())


def cookie_name(request: Request, name: str) -> str:
    """A name with the port that the browser asked: its cookies are those of all ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{name}_{port}" if port.isdecimal() else name


def set_cookie(
    request: Request,
    response: Response,
    name: str,
    value: str,
    *,
    max_age: int | None = None,
    same_site: Literal["lax", "strict"] = "lax",
) -> None:
    """A cookie of this page alone, which no script can read."""
    # A proxy that ends TLS says so; who lies about it harms only the own cookie.
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    response.set_cookie(
        cookie_name(request, name),
        value,
        max_age=max_age,
        path=request.scope.get("root_path", "") or "/",
        httponly=True,
        samesite=same_site,
        secure=scheme == "https",
    )
