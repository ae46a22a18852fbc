"""The page inside of Airflow: its views behind Airflow's own login and permissions."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.configuration import conf

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from conquiet.page import User

#: Where the page is, below Airflow's own address.
URL_PREFIX = "/conquiet"
_SECTION = "conquiet"
#: Airflow waits for open responses when it stops: an event stream is ended and opened again after this time.
_STREAM_S = 10.0


def is_page_enabled() -> bool:
    """Whether Airflow serves the page: `[conquiet] page = False` turns it off."""
    return conf.getboolean(_SECTION, "page", fallback=True)


def page_address(view: str, **parameters: str) -> str:
    """The address of a view, for a button of Airflow's."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    return f"{base}{URL_PREFIX}/{view}?{urlencode(parameters)}"


def menu_address() -> str:
    """Where the menu leads: below the path of Airflow's own address, if it has one."""
    return f"{urlsplit(conf.get('api', 'base_url', fallback='')).path.rstrip('/')}{URL_PREFIX}/"


class AirflowGate:
    """Users of Airflow: who may read the logs of tasks sees the page, who may edit connections acts on it."""

    async def admit(self, request: Request) -> User | Response:
        """The user of Airflow's token or cookie; anybody else gets 401 or 403."""
        from starlette.responses import Response

        user = await self._user_of(request)
        if user is None:
            return Response("Not authenticated: log in to Airflow", status_code=401)
        found = await asyncio.to_thread(self._permitted, user)
        return found or Response(
            "Not permitted: it needs the right to read the logs of tasks", status_code=403
        )

    async def _user_of(self, request: Request) -> Any:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
        from fastapi import HTTPException
        from jwt import InvalidTokenError

        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        token = credentials if scheme.lower() == "bearer" else request.cookies.get(COOKIE_NAME_JWT_TOKEN)
        if not token:
            return None
        try:
            return await get_auth_manager().get_user_from_token(token)
        except (InvalidTokenError, HTTPException):
            return None

    @staticmethod
    def _permitted(user: Any) -> User | None:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

        from conquiet.page import User

        manager = get_auth_manager()
        if not manager.is_authorized_dag(method="GET", access_entity=DagAccessEntity.TASK_LOGS, user=user):
            return None
        may_operate = manager.is_authorized_connection(method="PUT", user=user)
        return User(str(user.get_name()), "operator" if may_operate else "viewer")


class AirflowPage:
    """The page as an ASGI application that is built with the first request: most processes have none."""

    def __init__(self) -> None:
        self._app: Any = None
        self._building = threading.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            await asyncio.to_thread(self._build)
        await self._app(scope, receive, send)

    def _build(self) -> None:
        # Once, also for two first requests: each page has connections and a thread of its own.
        with self._building:
            if self._app is None:
                self._app = build_airflow_page()


def build_airflow_page() -> Any:
    """The page with the settings of the section of Airflow's configuration."""
    from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
    from conquiet.page import PageSettings, Site, build_page

    # Processes of one api-server share it; signed with another purpose than Airflow's own.
    secret = hashlib.sha256(f"conquiet.page\0{conf.get_mandatory_value('api', 'secret_key')}".encode())
    masked = conf.get(_SECTION, "page_mask", fallback="")
    settings = PageSettings(
        namespace=conf.get(_SECTION, "page_namespace", fallback="tasks"),
        masked_fields=frozenset(name.strip() for name in masked.split(",") if name.strip()),
        trace_url=conf.get(_SECTION, "page_trace_url", fallback="") or None,
        prometheus_url=conf.get(_SECTION, "page_prometheus_url", fallback="") or None,
        is_read_only=conf.getboolean(_SECTION, "page_read_only", fallback=False),
        # Airflow shows it in a frame.
        frame_ancestors="'self'",
        secret=secret.hexdigest(),
        stream_s=_STREAM_S,
    )
    conn_id = conf.get(_SECTION, "page_conn_id", fallback="redis_streams_default")
    return build_page(Site(lambda: RedisStreamsHook(conn_id).url, settings), AirflowGate())
