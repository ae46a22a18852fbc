"""The login of a page with a token."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from conquiet.page.desk import Desk
from conquiet.page.logins import TokenGate
from conquiet.page.rendering import render


class LoginForm:
    """Asks for the token."""

    def __init__(self, gate: TokenGate, desk: Desk) -> None:
        self._gate = gate
        self._desk = desk

    async def show(self, request: Request) -> Response:
        """The form."""
        return render(request, "login.html", {"problem": ""})

    async def log_in(self, request: Request) -> Response:
        """Exchange the token for a cookie."""
        form = await request.form()
        user = await self._gate.user_of(str(form.get("token", "")).strip())
        if user is None:
            problem = "This is not the token of this page. It is printed where the page was started."
            return render(request, "login.html", {"problem": problem}, status=401)
        response = RedirectResponse(request.scope.get("root_path", "") + "/", status_code=303)
        self._desk.cookie.give(request, response, user)
        return response

    async def log_out(self, request: Request) -> Response:
        """Forget the user."""
        response = RedirectResponse(request.scope.get("root_path", "") + "/login", status_code=303)
        self._desk.cookie.take(request, response)
        return response
