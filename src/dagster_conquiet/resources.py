"""Where Redis and the database are: resources that connect when they are first used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import dagster as dg
from pydantic import Field, PrivateAttr
from sqlalchemy import Engine, create_engine

from conquiet.queue import Client, QueueConfig, RedisStreamsQueue, open_client


class RedisStreamsResource(dg.ConfigurableResource[Any]):
    """A Redis or Valkey server by URL or by parts; keeps no connection, so that building it costs nothing.

    Examples:
        >>> resource = RedisStreamsResource(url=dg.EnvVar("REDIS_URL"))  # connects when it is first used
    """

    url: str | None = Field(
        default=None,
        repr=False,
        description="redis://, rediss://, unix://, redis+sentinel://, redis+cluster://; wins over the parts.",
    )
    host: str = Field(default="127.0.0.1", description="The server's name or address.")
    port: int = Field(default=6379, description="The server's port.")
    db: int = Field(default=0, description="The number of the database.")
    username: str | None = Field(default=None, description="The ACL user.")
    password: str | None = Field(default=None, repr=False, description="The password; use an EnvVar.")
    tls: bool = Field(default=False, description="Connect with TLS.")
    tls_ca_file: str | None = Field(default=None, description="The authorities that sign the server's key.")
    tls_cert_file: str | None = Field(default=None, description="This client's certificate.")
    tls_key_file: str | None = Field(default=None, repr=False, description="This client's key.")

    def server_url(self) -> str:
        """The URL, built from the parts if none was given; it may contain a password."""
        if self.url:
            return self.url
        user = quote(self.username or "", safe="")
        password = f":{quote(self.password, safe='')}" if self.password else ""
        credentials = f"{user}{password}@" if user or password else ""
        return f"{'rediss' if self.tls else 'redis'}://{credentials}{self.host}:{self.port}/{self.db}"

    @contextmanager
    def connect(self) -> Iterator[Client]:
        """A client that never retries by itself, closed at the end of the block."""
        client = open_client(self.server_url(), **self.tls_files())
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def open_queue(
        self, *, stream: str, group: str, consumer_name: str, **options: Any
    ) -> Iterator[RedisStreamsQueue]:
        """A queue with a client of its own; creates the group at the start of the stream if it is missing.

        `options` are those of `QueueConfig`, such as `claim_idle_ms`.
        """
        with self.connect() as client:
            yield RedisStreamsQueue(client, QueueConfig(stream, group, consumer_name, **options))

    def url_with_files(self) -> str:
        """The URL with the files for TLS in it, for what takes nothing but a URL."""
        url, files = self.server_url(), urlencode(self.tls_files())
        return f"{url}{'&' if '?' in url else '?'}{files}" if files else url

    def tls_files(self) -> dict[str, Any]:
        """The files that are set, by their names in redis-py and in a URL."""
        files = {
            "ssl_ca_certs": self.tls_ca_file,
            "ssl_certfile": self.tls_cert_file,
            "ssl_keyfile": self.tls_key_file,
        }
        return {name: path for name, path in files.items() if path}


class DatabaseResource(dg.ConfigurableResource[Any]):
    """The application's database: one engine per process, created when first used, disposed after the run.

    Examples:
        >>> resource = DatabaseResource(url="sqlite:///shop.db", pool_size=4)
    """

    url: str = Field(repr=False, description="A SQLAlchemy URL; use an EnvVar.")
    pool_size: int = Field(
        default=1, description="Connections that are kept; a drain uses as many as its concurrency."
    )

    _engine: Engine | None = PrivateAttr(default=None)

    def get_engine(self) -> Engine:
        if self._engine is None:
            # Errors of statements, which Dagster keeps, would quote payloads.
            self._engine = create_engine(
                self.url, pool_size=self.pool_size, pool_pre_ping=True, hide_parameters=True
            )
        return self._engine

    def dispose(self) -> None:
        """Close what the engine has open; the next use creates a new one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Called by Dagster when the run, or the step's process, is over."""
        self.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKeys:
    """The names of the resources in the Definitions.

    Examples:
        >>> keys = ResourceKeys(redis="valkey")
        >>> spec = DrainSpec(stream="orders", group="billing", handler=bill, resources=keys)
    """

    redis: str = "redis_streams"
    database: str = "database"

    def redis_of(self, context: Any) -> RedisStreamsResource:
        """The Redis resource of a step, a tick or a check."""
        resource: RedisStreamsResource = getattr(context.resources, self.redis)
        return resource

    def database_of(self, context: Any) -> DatabaseResource:
        resource: DatabaseResource = getattr(context.resources, self.database)
        return resource
