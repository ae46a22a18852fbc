"""What kept a client from its server, in the words of the connection's fields."""

from __future__ import annotations

from redis.exceptions import MaxConnectionsError, RedisClusterException, RedisError

from airflow_provider_conquiet.hooks.server import Server
from conquiet import NoConnectionError
from conquiet.masking import mask
from conquiet.queue.no_connection import NoConnection, why_no_connection

#: What opening a connection may raise.
CONNECT_ERRORS = (RedisError, RedisClusterException, MaxConnectionsError, OSError)

_IN_FIELDS = {
    NoConnection.CLOSED: "the server closed the connection at once; if it expects TLS, tick tls",
    NoConnection.NO_PASSWORD: "the server refused the user or the password: it wants a password",
    NoConnection.NO_TLS: "TLS: the server speaks none at this port; untick tls, or give the port for TLS",
    NoConnection.CERTIFICATE: (
        "TLS: the server's certificate is not accepted; check ca_path, and the name of the host"
    ),
    NoConnection.CLIENT_CERTIFICATE: "TLS: the server refused the client; check cert_path and key_path",
    NoConnection.TLS: "TLS: ca_path, cert_path or key_path cannot be used",
    NoConnection.NO_CLUSTER: "the server is not part of a cluster; give another mode",
    NoConnection.CLUSTER: "the server is part of a cluster; give mode cluster",
}


class ServerConnectionError(NoConnectionError):
    """The server of a connection could not be reached, or did not let the client in."""

    def __init__(self, server: Server, error: BaseException) -> None:
        reason = reason_of(error)
        super().__init__("connect", stream="", group=None, reason=reason)
        # No stream is concerned.
        self.args = (f"connection {server.conn_id!r} to {server.shown} failed: {reason}",)


def reason_of(error: BaseException) -> str:
    """Why no connection came about, in one sentence without a password."""
    why, text = why_no_connection(error), mask(f"{type(error).__name__}: {error}")
    return text if why is None else f"{_IN_FIELDS.get(why, why.value)} ({text})"
