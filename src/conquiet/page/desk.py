"""Desk: answers requests: lets in, shows views, shows what an action would do, and has it done."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from conquiet.errors import QueueError
from conquiet.page.actions.action import Action
from conquiet.page.failures import PROBLEMS, status_of
from conquiet.page.headers import security_headers
from conquiet.page.identity import FormTokens, Gate, LoginCookie, Signer, User
from conquiet.page.live import LiveStreams, tail_events, view_events
from conquiet.page.performance import Performance
from conquiet.page.query import Place, Query, address
from conquiet.page.rendering import environment, render, render_text
from conquiet.page.site import Site
from conquiet.page.view import View

_log = logging.getLogger(__name__)

#: What answers a request, given its user.
Answer = Callable[[Request, User], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]

#: More than a form of ours ever has.
_LARGEST_FORM = 1_000_000


class Desk:
    """One page's requests."""

    def __init__(self, site: Site, gate: Gate) -> None:
        self.site = site
        self._gate = gate
        signer = Signer(site.settings.secret)
        self.cookie = LoginCookie(signer)
        self._tokens = FormTokens(signer)
        self._streams = LiveStreams(site.settings.most_live, site.settings.stream_s)
        self._performance = Performance(site)

    def end_streams(self) -> None:
        """End what is sent live: the server would wait for it before it stops."""
        self._streams.is_closing.set()

    def close(self) -> None:
        """End the event streams and the jobs, and close the connections."""
        self.end_streams()
        self.site.close()

    def shows(self, view: View) -> Endpoint:
        """The endpoint of a view."""

        async def show(request: Request, user: User) -> Response:
            def read() -> Response:
                context = view.read(self.site, Query(request.query_params))
                return self._render(request, user, view.template, view.section, context)

            return await asyncio.to_thread(read)

        return self._admitted(show)

    def live(self, views: Mapping[str, View]) -> Endpoint:
        """The endpoint of updates: `view` in its address says of what."""

        async def stream(request: Request, user: User) -> Response:
            parts = urlsplit(request.query_params.get("view", ""))
            view = views.get(parts.path)
            if view is None:
                return Response("no such view", status_code=404)
            if self._streams.is_full:
                return Response("too many pages are open", status_code=503)
            place = Place(Place.of(request).root, parts.path, QueryParams(parse_qsl(parts.query)))
            has_logout = self.cookie.user_of(request) is not None
            token = self._tokens.token(user, self._tokens.browser_of(request))

            def render_again() -> str:
                try:
                    context = view.read(self.site, Query(place.parameters))
                except (ValueError, LookupError) as error:
                    raise QueueError("read", stream=parts.path, group=None, reason=str(error)) from error
                context |= self._common(place, user, view.section, token) | {"has_logout": has_logout}
                return render_text(place, view.template, context, layout="fragment.html")

            events = view_events(request, self._streams, render_again, self.site.settings.refresh_s)
            return self._streams.response(events)

        return self._admitted(stream)

    @property
    def tail(self) -> Endpoint:
        """The endpoint of new messages."""

        async def stream(request: Request, _user: User) -> Response:
            name = Query(request.query_params).needed("name")
            if self._streams.is_full:
                return Response("too many pages are open", status_code=503)
            place = Place.of(request)

            def row(message: Any, summary: str) -> str:
                context = {"message": message, "summary": summary, "name": name}
                return render_text(place, "tail_row.html", context)

            return self._streams.response(tail_events(request, self._streams, self.site, name, row))

        return self._admitted(stream)

    def plans(self, action: Action) -> Endpoint:
        """The endpoint that asks before an action, with its dry run."""

        async def ask(request: Request, user: User) -> Response:
            self._check_operator(user)

            def read() -> Response:
                plan = action.plan(self.site, Query(request.query_params))
                hidden = [*plan.hidden, ("question", secrets.token_hex(8))]
                changed = {name for name, _ in hidden} | {option.name for option in plan.options}
                fields = [pair for pair in request.query_params.multi_items() if pair[0] not in changed]
                context = {"plan": plan, "preview": plan.preview(), "action": action.name}
                context["fields"] = [*fields, *hidden]
                return self._render(request, user, "confirm.html", "", context)

            return await asyncio.to_thread(read)

        return self._admitted(ask)

    def performs(self, action: Action) -> Endpoint:
        """The endpoint that does it: audited first, then in a thread of its own."""

        async def perform(request: Request, user: User) -> Response:
            form, place = await self._checked_form(request, user), Place.of(request)
            if form.has_changed_options:
                # What was shown is not what is asked for now: it is tried and confirmed first.
                again = address(f"/act/{action.name}", form.asked())
                return RedirectResponse(place.root + again, status_code=303)
            done = await asyncio.to_thread(self._performance.begin, action, form, user)
            return RedirectResponse(place.root + done, status_code=303)

        return self._admitted(perform)

    @property
    def stop_job(self) -> Endpoint:
        """The endpoint that has an action end before it is done."""

        async def stop(request: Request, user: User) -> Response:
            form = await self._checked_form(request, user)
            job_id = form.needed("job")
            await asyncio.to_thread(self._performance.stop, job_id, user)
            return RedirectResponse(Place.of(request).link("/audit", done=job_id), status_code=303)

        return self._admitted(stop)

    async def not_found(self, request: Request, error: Exception) -> Response:
        """Anything else than a view."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        context = {"problem": "There is no such page.", "user": None}
        return render(Place.of(request), "problem.html", context, status=status)

    async def failed(self, request: Request, error: Exception) -> Response:
        """A bug; the log has more."""
        _log.error("request %s failed", request.url.path, exc_info=error)
        text = f"{type(error).__name__}: a bug of conquiet; the log of the page has more."
        response = render(Place.of(request), "problem.html", {"problem": text, "user": None}, status=500)
        # It is sent from outside of what gives all other responses theirs.
        response.headers.update(security_headers(self.site.settings.frame_ancestors))
        return response

    def _admitted(self, answer: Answer) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            user = await self._gate.admit(request)
            if isinstance(user, Response):
                return user
            try:
                return await answer(request, user)
            except PROBLEMS as error:
                context = {"problem": str(error), "user": user}
                return render(Place.of(request), "problem.html", context, status=status_of(error))

        return endpoint

    def _check_operator(self, user: User) -> None:
        if self.site.settings.is_read_only:
            raise PermissionError("This page is read-only: it was started with --read-only.")
        if not user.may_operate:
            raise PermissionError(f"{user.name} may look, and not change anything: this needs an operator.")

    async def _checked_form(self, request: Request, user: User) -> Query:
        """The form of an operator, sent from a page of ours."""
        self._check_operator(user)
        query = await form_of(request)
        if not self._tokens.is_ours(request, user, query.text("form_token") or ""):
            raise PermissionError(
                "This form was not sent from this page, or is too old: go back, and reload it."
            )
        return query

    def _render(
        self, request: Request, user: User, template: str, section: str, context: dict[str, Any]
    ) -> Response:
        place, browser = Place.of(request), self._tokens.browser_of(request)
        context |= self._common(place, user, section, self._tokens.token(user, browser))
        context["has_logout"] = self.cookie.user_of(request) is not None
        response = render(place, template, context)
        self._tokens.remember(request, response, browser)
        return response

    def _common(self, place: Place, user: User, section: str, form_token: str) -> dict[str, Any]:
        """What every template may use."""
        done, is_read_only = place.parameters.get("done"), self.site.settings.is_read_only
        return {
            "user": user,
            "may_operate": user.may_operate and not is_read_only,
            "is_read_only": is_read_only,
            "section": section,
            "form_token": form_token,
            "job": self._performance.find(done) if done else None,
            "has_tasks": self.site.has_tasks,
            "view_address": str(place),
        }


async def form_of(request: Request) -> Query:
    """The texts of a form.

    Raises:
        ValueError: it is larger than any of ours.
    """
    size = request.headers.get("content-length", "")
    if not size.isdecimal() or int(size) > _LARGEST_FORM:
        raise ValueError(f"a form has up to {_LARGEST_FORM:,} bytes, and says how many")
    form = await request.form()
    return Query(QueryParams([(name, text) for name, text in form.multi_items() if isinstance(text, str)]))


# Templates are compiled with the first request, not with the first of each kind.
environment()
