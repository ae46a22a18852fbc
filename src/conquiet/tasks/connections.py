"""AppConnections: the server and the database of an app, opened when they are needed, and its keys there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Engine, create_engine, make_url

from conquiet.queue import open_client
from conquiet.queue.connection import AsyncClient, Client, execute, open_async_client, visible_errors
from conquiet.settings import Settings
from conquiet.tasks.keys import QueueKeys, registry_key
from conquiet.tasks.payload_store import PayloadStore
from conquiet.tasks.payloads import Payloads
from conquiet.tasks.rates import RateLimiter, RedisRateLimiter
from conquiet.tasks.results import AsyncRedisResults, RedisResults

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


class AppConnections:
    """The connections of one app in this process."""

    def __init__(
        self, server: str | Settings | None, database: Engine | AsyncEngine | str | None, namespace: str
    ) -> None:
        self._server = server
        self._database = database
        self.namespace = namespace
        #: Keeps what is above `max_bytes`; without one that is refused. Set before the app is used.
        self.payload_store: PayloadStore | None = None
        self.payloads = Payloads(self)
        #: For which event loop and server, and its connections.
        self._loop: tuple[Any, AsyncClient, AsyncRedisResults] | None = None

    @cached_property
    def settings(self) -> Settings:
        """Those that were given, or those of the process."""
        if isinstance(self._server, Settings):
            return self._server
        return Settings.load(redis_url=self._server)

    @cached_property
    def client(self) -> Client:
        """The connections of this process."""
        return open_client(self.settings.redis_url)

    @cached_property
    def results(self) -> RedisResults:
        """Where states and results are read."""
        return RedisResults(self.client, self.namespace)

    @cached_property
    def rate_limiter(self) -> RateLimiter:
        """What keeps the rates of tasks; set another one before a worker starts."""
        return RedisRateLimiter(self.client, self.namespace)

    @property
    def async_client(self) -> AsyncClient:
        """The connections of the running event loop."""
        return self._of_loop()[0]

    @property
    def async_results(self) -> AsyncRedisResults:
        """As `results`, for the running event loop."""
        return self._of_loop()[1]

    def _of_loop(self) -> tuple[AsyncClient, AsyncRedisResults]:
        import asyncio

        whose = asyncio.get_running_loop(), self.settings.redis_url, self.namespace
        if self._loop is None or self._loop[0] != whose:
            client = open_async_client(self.settings.redis_url)
            self._loop = whose, client, AsyncRedisResults(client, self.namespace)
        return self._loop[1:]

    @cached_property
    def engine(self) -> Engine | None:
        """The database of tasks that take a `DbSession`; `None` without one, or if its driver only awaits."""
        database = self._database or self.settings.database_url
        if isinstance(database, str):
            return None if make_url(database).get_dialect().is_async else create_engine(database)
        return database if isinstance(database, Engine) else None

    @cached_property
    def async_engine(self) -> AsyncEngine | None:
        """The database of tasks that take an `AsyncSession`; may be set before a worker starts.

        `None` if the app was given an `Engine`, or the URL of a driver that cannot await.
        """
        database = self._database or self.settings.database_url
        if isinstance(database, str):
            url = make_url(database)
            if not url.get_dialect().get_async_dialect_cls(url).is_async:
                return None
            from sqlalchemy.ext.asyncio import create_async_engine

            return create_async_engine(url)
        return None if isinstance(database, Engine) else database

    def queues(self) -> list[str]:
        """The names of all queues that were ever used, in order."""
        key = registry_key(self.namespace)
        with visible_errors("SMEMBERS", stream=key, group=None):
            return sorted(name.decode() for name in execute(self.client, "SMEMBERS", key))

    def keys(self, queue: str) -> QueueKeys:
        """The keys of a queue."""
        return QueueKeys(self.namespace, queue)

    def use_server(self, url: str) -> None:
        """Use another server from now on, as a worker does that was given one."""
        settings = replace(self.settings, redis_url=url)
        self.close()
        self._server = self.settings = settings

    @contextmanager
    def on_server(self, url: str) -> Iterator[None]:
        """Use another server for as long as the block lasts."""
        before = self._server, self.__dict__.get("settings")
        self.use_server(url)
        try:
            yield
        finally:
            self.close()
            self._server, settings = before
            self.__dict__.pop("settings")
            if settings is not None:
                self.settings = settings

    def close(self) -> None:
        """Close the connections; the app opens new ones when it is used again."""
        if isinstance(self.__dict__.get("rate_limiter"), RedisRateLimiter):
            del self.__dict__["rate_limiter"]
        client = self.__dict__.pop("client", None)
        self.__dict__.pop("results", None)
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
