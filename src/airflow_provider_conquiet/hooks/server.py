"""Server: the Redis server that an Airflow connection names, and the URL that opens it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self
from urllib.parse import quote, urlencode

from airflow_provider_conquiet.arguments import truth

MODES = ("standalone", "cluster", "sentinel")

_DEFAULT_PORTS = {"standalone": 6379, "cluster": 6379, "sentinel": 26379}
#: From the names in the connection's form to redis-py's.
_OPTIONS = {
    "ca_path": "ssl_ca_certs",
    "cert_path": "ssl_certfile",
    "key_path": "ssl_keyfile",
    "sentinel_username": "sentinel_username",
    "sentinel_password": "sentinel_password",
    "ssl_cert_reqs": "ssl_cert_reqs",
}


class ConnectionFields(Protocol):
    """The fields of an Airflow connection that name a server."""

    conn_id: str
    host: str | None
    port: int | None
    login: str | None
    password: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One Redis server, cluster or sentinel set, as an Airflow connection describes it."""

    hosts: tuple[str, ...]
    mode: str = "standalone"
    user: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    #: The name under which sentinels know the master.
    service: str | None = None
    #: Further arguments of redis-py's connections.
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_connection(cls, connection: ConnectionFields, extra: Mapping[str, Any]) -> Self:
        """Read the fields; a wrong value is refused with the connection's name."""
        of_connection = f"of connection {connection.conn_id!r}"
        mode = extra.get("mode") or "standalone"
        if mode not in MODES:
            raise ValueError(f"mode {of_connection} must be one of {MODES}, got {mode!r}")
        service = extra.get("service")
        if mode == "sentinel" and not service:
            raise ValueError(f"connection {connection.conn_id!r} has mode 'sentinel' and names no service")
        try:
            # A connection that was written as a URI has text everywhere.
            db = int(str(extra.get("db") or 0))
        except ValueError as error:
            raise ValueError(f"db {of_connection} must be a number, got {extra['db']!r}") from error
        port = connection.port or _DEFAULT_PORTS[mode]
        hosts = [host.strip() for host in (connection.host or "localhost").split(",")]
        options = {option: str(extra[name]) for name, option in _OPTIONS.items() if extra.get(name)}
        return cls(
            hosts=tuple(_with_port(host, port) for host in hosts if host),
            mode=mode,
            user=connection.login or None,
            password=connection.password or None,
            db=db,
            tls=truth(f"tls {of_connection}", extra.get("tls") or False),
            service=service,
            options=tuple(sorted(options.items())),
        )

    @property
    def address(self) -> str:
        """Host and port of the first node: what names the server in assets and messages."""
        return self.hosts[0]

    @property
    def url(self) -> str:
        """The URL that `conquiet.queue.open_client` opens, with the password."""
        scheme, hosts, path = "rediss" if self.tls else "redis", self.hosts[0], f"/{self.db}"
        if self.mode != "standalone":
            scheme += f"+{self.mode}"
        if self.mode == "sentinel":
            hosts, path = ",".join(self.hosts), f"/{quote(self.service or '', safe='')}/{self.db}"
        user, password = (quote(part or "", safe="") for part in (self.user, self.password))
        credentials = f"{user}:{password}@" if user or password else ""
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{scheme}://{credentials}{hosts}{path}{query}"


def _with_port(host: str, port: int) -> str:
    is_bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
    if is_bare_ipv6:
        return f"[{host}]:{port}"
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"
