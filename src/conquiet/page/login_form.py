"""The login of a page with a token."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from conquiet.page.desk import Desk, form_of
from conquiet.page.logins import TokenGate
from conquiet.page.query import Place
from conquiet.page.rendering import render


class LoginForm:
    """Asks for the token, and goes on to where the browser wanted to be."""

    def __init__(self, gate: TokenGate, desk: Desk) -> None:
        self._gate = gate
        self._desk = desk

    async def show(self, request: Request) -> Response:
        """The form."""
        context = {"problem": "", "next": request.query_params.get("next", "")}
        return render(Place.of(request), "login.html", context)

    async def log_in(self, request: Request) -> Response:
        """Exchange the token for a cookie."""
        place = Place.of(request)
        try:
            form = await form_of(request)
            token, wanted = form.text("token") or "", form.text("next") or ""
        except ValueError as error:
            return render(place, "login.html", {"problem": str(error), "next": ""}, status=400)
        user = await self._gate.user_of(token.strip())
        if user is None:
            problem = "This is not the token of this page. It is printed where the page was started."
            return render(place, "login.html", {"problem": problem, "next": wanted}, status=401)
        # A browser takes two slashes, of either kind, for another host.
        is_ours = wanted.startswith("/") and wanted[1:2] not in ("/", "\\") and wanted.isprintable()
        response = RedirectResponse(place.root + (wanted if is_ours else "/"), status_code=303)
        self._desk.cookie.give(request, response, user)
        return response

    async def log_out(self, request: Request) -> Response:
        """Forget the user."""
        response = RedirectResponse(Place.of(request).link("/login"), status_code=303)
        self._desk.cookie.take(request, response)
        return response
