"""What an Airflow connection says of the Redis server, and the URL that opens it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self
from urllib.parse import quote, urlencode

MODES = ("standalone", "cluster", "sentinel")

_DEFAULT_PORTS = {"standalone": 6379, "cluster": 6379, "sentinel": 26379}
#: From the names in the connection's form to redis-py's.
_TLS_FILES = {"ca_path": "ssl_ca_certs", "cert_path": "ssl_certfile", "key_path": "ssl_keyfile"}
_WORDS_FOR_BOOL = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


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
        """Read the fields; a value that means nothing is refused with the connection's name."""
        mode = extra.get("mode") or "standalone"
        if mode not in MODES:
            raise ValueError(
                f"mode of connection {connection.conn_id!r} must be one of {MODES}, got {mode!r}"
            )
        service = extra.get("service")
        if mode == "sentinel" and not service:
            raise ValueError(f"connection {connection.conn_id!r} has mode 'sentinel' and names no service")
        return cls(
            hosts=_hosts(connection.host or "localhost", connection.port or _DEFAULT_PORTS[mode]),
            mode=mode,
            user=connection.login or None,
            password=connection.password or None,
            db=_number("db", extra.get("db"), connection.conn_id),
            tls=_truth("tls", extra.get("tls"), connection.conn_id),
            service=service,
            options=tuple(sorted(_options(extra).items())),
        )

    @property
    def address(self) -> str:
        """Host and port of the first node: what names the server in assets and messages."""
        return self.hosts[0]

    @property
    def url(self) -> str:
        """The URL that `conquiet.queue.open_client` opens; it holds the password."""
        scheme = ("rediss" if self.tls else "redis") + ("" if self.mode == "standalone" else f"+{self.mode}")
        hosts = ",".join(self.hosts) if self.mode == "sentinel" else self.hosts[0]
        path = (
            f"/{quote(self.service or '', safe='')}/{self.db}" if self.mode == "sentinel" else f"/{self.db}"
        )
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{scheme}://{self._credentials}{hosts}{path}{query}"

    @property
    def _credentials(self) -> str:
        if self.user is None and self.password is None:
            return ""
        return f"{quote(self.user or '', safe='')}:{quote(self.password or '', safe='')}@"


def _hosts(text: str, port: int) -> tuple[str, ...]:
    return tuple(_with_port(host.strip(), port) for host in text.split(",") if host.strip())


def _with_port(host: str, port: int) -> str:
    is_bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
    if is_bare_ipv6:
        return f"[{host}]:{port}"
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"


def _options(extra: Mapping[str, Any]) -> dict[str, str]:
    options = {redis_name: str(extra[name]) for name, redis_name in _TLS_FILES.items() if extra.get(name)}
    for name in ("sentinel_username", "sentinel_password", "ssl_cert_reqs"):
        if extra.get(name):
            options[name] = str(extra[name])
    return options


def _number(name: str, value: object, conn_id: str) -> int:
    try:
        return int(str(value)) if value not in (None, "") else 0
    except ValueError as error:
        raise ValueError(f"{name} of connection {conn_id!r} must be a number, got {value!r}") from error


def _truth(name: str, value: object, conn_id: str) -> bool:
    # A connection that was written as a URI has text everywhere.
    found = _WORDS_FOR_BOOL.get("" if value is None else str(value).lower())
    if found is None:
        raise ValueError(f"{name} of connection {conn_id!r} must be true or false, got {value!r}")
    return found
