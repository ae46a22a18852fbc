"""The page as an ASGI application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from conquiet.page.actions import groups, letters, schedules, tasks
from conquiet.page.desk import Desk
from conquiet.page.headers import SecurityHeaders
from conquiet.page.identity import Gate
from conquiet.page.login_form import LoginForm
from conquiet.page.logins import TokenGate
from conquiet.page.rendering import HERE
from conquiet.page.site import Site
from conquiet.page.views import audit, consumers, messages, overview, pending, topic
from conquiet.page.views import letters as letter_views
from conquiet.page.views import schedules as schedule_views
from conquiet.page.views import tasks as task_views

VIEWS = (
    overview.VIEW,
    topic.VIEW,
    *pending.VIEWS,
    *messages.VIEWS,
    *letter_views.VIEWS,
    *consumers.VIEWS,
    *task_views.VIEWS,
    *schedule_views.VIEWS,
    audit.VIEW,
)
ACTIONS = (*letters.ACTIONS, *groups.ACTIONS, *tasks.ACTIONS, *schedules.ACTIONS)


def build_page(site: Site, gate: Gate) -> Starlette:
    """The application; it can be mounted below a path of another one. Its end closes the site.

    Examples:
        >>> from starlette.applications import Starlette
        >>> from starlette.routing import Mount
        >>> site = Site(lambda: server.url, PageSettings(secret="of your configuration"))
        >>> app = Starlette(routes=[Mount("/queues", build_page(site, OwnGate()))])
        >>> site.close()
    """
    desk = Desk(site, gate)
    routes: list[BaseRoute] = [
        # Whether the page answers; says nothing of its server.
        Route("/health", PlainTextResponse("ok")),
        Mount("/static", _Static(directory=HERE / "static")),
    ]
    if isinstance(gate, TokenGate):
        form = LoginForm(gate, desk)
        routes += [
            Route("/login", form.show, methods=["GET"]),
            Route("/login", form.log_in, methods=["POST"]),
            Route("/logout", form.log_out, methods=["POST"]),
        ]
    routes += [Route(view.path, desk.shows(view), methods=["GET"]) for view in VIEWS]
    by_path = {view.path: view for view in VIEWS}
    routes += [
        Route("/live", desk.live(by_path), methods=["GET"]),
        Route("/tail/events", desk.tail, methods=["GET"]),
        Route("/stop-job", desk.stop_job, methods=["POST"]),
    ]
    for action in ACTIONS:
        routes.append(Route(f"/act/{action.name}", desk.plans(action), methods=["GET"]))
        routes.append(Route(f"/act/{action.name}", desk.performs(action), methods=["POST"]))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        # In a thread: it opens the first connection, which fails late if the server is unavailable.
        starting = threading.Thread(target=site.start_sampler, name="conquiet-page-start", daemon=True)
        starting.start()
        yield
        await asyncio.to_thread(starting.join)
        desk.close()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(SecurityHeaders, frame_ancestors=site.settings.frame_ancestors)],
        lifespan=lifespan,
        exception_handlers={404: desk.not_found, 405: desk.not_found, 500: desk.failed},
    )
    app.state.end_streams = desk.end_streams
    return app


class _Static(StaticFiles):
    """Our scripts and styles; a browser asks whether they are still the same."""

    def file_response(self, *args: object, **options: object) -> Response:
        response = super().file_response(*args, **options)  # type: ignore[arg-type]  # passed on
        response.headers["Cache-Control"] = "no-cache"
        return response
