"""Server: the Redis server that an Airflow connection names, and the URL that opens it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote, urlencode

from airflow_provider_conquiet.arguments import truth
from conquiet.masking import HIDDEN, mask

CONN_TYPES = ("redis_streams", "redis", "rediss")
MODES = ("standalone", "cluster", "sentinel")
CERT_REQS = ("required", "optional", "none")

_DEFAULT_PORTS = {"standalone": 6379, "cluster": 6379, "sentinel": 26379}
#: The fields of `extra`, by their names in the form; the names after each are those of Airflow's `redis`.
_NAMES = {
    "db": (),
    "tls": ("ssl",),
    "mode": (),
    "cluster": (),
    "startup_nodes": (),
    "service": (),
    "ca_path": ("ssl_ca_certs",),
    "cert_path": ("ssl_certfile",),
    "key_path": ("ssl_keyfile",),
    "key_password": ("ssl_password",),
    "ssl_cert_reqs": (),
    "ssl_check_hostname": (),
    "sentinel_username": (),
    "sentinel_password": (),
    "socket_timeout": (),
    "socket_connect_timeout": (),
}
#: The application's database, which `database` reads.
DATABASE_NAMES = ("db_conn_id", "db_url", "db_url_secret")
#: Every field of `extra` that means something, by our names.
FIELDS = {*_NAMES, *DATABASE_NAMES}
#: From the names in the form to redis-py's.
_OPTIONS = {
    "ca_path": "ssl_ca_certs",
    "cert_path": "ssl_certfile",
    "key_path": "ssl_keyfile",
    "key_password": "ssl_password",
    "ssl_cert_reqs": "ssl_cert_reqs",
    "ssl_check_hostname": "ssl_check_hostname",
    "sentinel_username": "sentinel_username",
    "sentinel_password": "sentinel_password",
    "socket_timeout": "socket_timeout",
    "socket_connect_timeout": "socket_connect_timeout",
}
_FILES = {"ssl_ca_certs": "ca_path", "ssl_certfile": "cert_path", "ssl_keyfile": "key_path"}


class ConnectionFields(Protocol):
    """The fields of an Airflow connection that name a server."""

    conn_id: str
    conn_type: str | None
    host: str | None
    port: int | None
    login: str | None
    password: str | None
    schema: str | None
    extra: str | None


class ConnectionFieldError(ValueError):
    """A field of an Airflow connection is missing, or has a value that cannot be meant."""

    def __init__(self, conn_id: str, reason: str) -> None:
        self.conn_id = conn_id
        super().__init__(f"connection {conn_id!r} {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One Redis server, cluster or sentinel set, as an Airflow connection describes it."""

    conn_id: str
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
        """Read the fields; what is missing, unknown or contradictory is refused with the connection's name.

        Raises:
            ConnectionFieldError: it names no server that can be reached as it says.
        """
        fields = _Fields(connection, extra)
        mode = fields.mode()
        hosts = fields.hosts(mode)
        db = fields.db(mode)
        tls = fields.tls()
        if mode == "sentinel" and not extra.get("service"):
            raise ConnectionFieldError(connection.conn_id, "has mode 'sentinel' and names no service")
        return cls(
            conn_id=connection.conn_id,
            hosts=hosts,
            mode=mode,
            user=connection.login or None,
            password=connection.password or None,
            db=db,
            tls=tls,
            service=extra.get("service") or None,
            options=fields.options(is_tls=tls),
        )

    @property
    def address(self) -> str:
        """Host and port of the first node: what names the server in assets and messages."""
        return self.hosts[0]

    @property
    def url(self) -> str:
        """The URL that `conquiet.queue.open_client` opens, with the password."""
        user, password = (quote(part or "", safe="") for part in (self.user, self.password))
        credentials = f"{user}:{password}@" if user or password else ""
        return self._url(credentials, f"?{urlencode(self.options)}" if self.options else "")

    @property
    def shown(self) -> str:
        """The URL as people may see it: with the user's name, without passwords and options."""
        return self._url(f"{quote(self.user, safe='')}@" if self.user else "", "")

    def check_files(self) -> None:
        """Refuse files for TLS that this machine does not have.

        Raises:
            ConnectionFieldError: a path of the connection cannot be read here.
        """
        for option, path in self.options:
            if option in _FILES and not Path(path).is_file():
                reason = f"has {_FILES[option]} {path!r}, and there is no such file on this machine"
                raise ConnectionFieldError(self.conn_id, reason)

    def _url(self, credentials: str, query: str) -> str:
        scheme, hosts, path = "rediss" if self.tls else "redis", self.hosts[0], f"/{self.db}"
        if self.mode != "standalone":
            scheme += f"+{self.mode}"
        if self.mode == "sentinel":
            hosts, path = ",".join(self.hosts), f"/{quote(self.service or '', safe='')}/{self.db}"
        return f"{scheme}://{credentials}{hosts}{path}{query}"


class _Fields:
    """The fields of one connection, each with its checks."""

    def __init__(self, connection: ConnectionFields, extra: Mapping[str, Any]) -> None:
        self._connection = connection
        if connection.conn_type not in CONN_TYPES:
            raise self._error(f"has type {connection.conn_type!r}, not one of {', '.join(CONN_TYPES)}")
        if connection.extra and not extra and not _is_json_object(connection.extra):
            raise self._error("has an extra that is not a JSON object")
        known = {name: {name, *others} for name, others in _NAMES.items()}
        unknown = sorted(set(extra) - set(DATABASE_NAMES) - set().union(*known.values()))
        if unknown:
            raise self._error(f"has unknown fields in its extra: {', '.join(unknown)}")
        self._values: dict[str, Any] = {}
        for name, names in known.items():
            values = {
                str(extra[one]): extra[one] for one in sorted(names) if extra.get(one) not in (None, "")
            }
            if len(values) > 1:
                raise self._error(f"has different values for {' and '.join(sorted(names))}")
            if values:
                self._values[name] = next(iter(values.values()))

    def mode(self) -> str:
        mode = str(self._values.get("mode") or "standalone")
        if mode not in MODES:
            raise self._error(f"has mode {mode!r}, not one of {', '.join(MODES)}")
        if self._truth("cluster", default=False):
            if mode == "sentinel":
                raise self._error("has mode 'sentinel' and cluster")
            return "cluster"
        return mode

    def hosts(self, mode: str) -> tuple[str, ...]:
        text = self._connection.host or ""
        port = self._connection.port or _DEFAULT_PORTS[mode]
        hosts = [host.strip() for host in text.split(",") if host.strip()]
        if not hosts:
            raise self._error("names no host")
        if any(letter in text for letter in "/@?#"):
            raise self._error(f"has host {_without_credentials(text)!r}, which is not the name of a host")
        if mode == "standalone" and len(hosts) > 1:
            raise self._error(f"names {len(hosts)} hosts, which only modes cluster and sentinel can have")
        if mode == "cluster":
            hosts += [
                node.strip() for node in str(self._values.get("startup_nodes") or "").split(",") if node
            ]
        return tuple(_with_port(host, port) for host in hosts)

    def db(self, mode: str) -> int:
        """The field `db`, or what a URI has after its host; both may say the same."""
        given = {str(value) for value in (self._values.get("db"), self._connection.schema or None)} - {"None"}
        if len(given) > 1:
            raise self._error(
                f"names two databases of the server, {' and '.join(map(_without_credentials, sorted(given)))}"
            )
        text = given.pop() if given else "0"
        if not (text.isascii() and text.isdigit()):
            raise self._error(
                f"has {_without_credentials(text)!r} where the number of a database is expected; in a URI, "
                "special characters of the password are percent-encoded"
            )
        if mode == "cluster" and int(text):
            raise self._error(f"has database {text}, and a cluster has only 0")
        return int(text)

    def tls(self) -> bool:
        tls = self._truth("tls", default=self._connection.conn_type == "rediss")
        if self._connection.conn_type == "rediss" and not tls:
            raise self._error("has type rediss, and says that TLS is not used")
        files = [name for name in _FILES.values() if name in self._values]
        if files and not tls:
            raise self._error(f"has {', '.join(files)}, and says that TLS is not used")
        return tls

    def options(self, *, is_tls: bool) -> tuple[tuple[str, str], ...]:
        reqs = self._values.get("ssl_cert_reqs")
        if reqs is not None and reqs not in CERT_REQS:
            raise self._error(f"has ssl_cert_reqs {reqs!r}, not one of {', '.join(CERT_REQS)}")
        self._truth("ssl_check_hostname", default=True)
        if ("cert_path" in self._values) != ("key_path" in self._values):
            raise self._error("has only one of cert_path and key_path")
        return tuple(
            sorted(
                (option, str(self._values[name]))
                for name, option in _OPTIONS.items()
                if name in self._values and (is_tls or not option.startswith("ssl_"))
            )
        )

    def _truth(self, name: str, *, default: bool) -> bool:
        return truth(f"{name} of connection {self._connection.conn_id!r}", self._values.get(name, default))

    def _error(self, reason: str) -> ConnectionFieldError:
        return ConnectionFieldError(self._connection.conn_id, reason)


def _without_credentials(text: str) -> str:
    """What is shown of a field that may have a part of a URL in it, and so of its password."""
    return mask(f"{HIDDEN}@{text.rpartition('@')[2]}" if "@" in text else text)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _with_port(host: str, port: int) -> str:
    is_bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
    if is_bare_ipv6:
        return f"[{host}]:{port}"
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"
