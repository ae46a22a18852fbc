"""What kept a client from its server, in one sentence that says which field of the connection to look at."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

from redis.exceptions import AuthenticationError, MaxConnectionsError, RedisClusterException, RedisError

from airflow_provider_conquiet.hooks.server import Server
from conquiet import QueueError
from conquiet.masking import mask


class NoConnectionError(QueueError):
    """The server of a connection could not be reached, or did not let the client in."""

    def __init__(self, server: Server, reason: str) -> None:
        super().__init__("connect", stream="", group=None, reason=reason)
        # No stream is concerned.
        self.args = (f"connection {server.conn_id!r} to {server.shown} failed: {reason}",)


def reason_of(error: BaseException, server: Server) -> str:
    """Why no connection came about, in one sentence without a password."""
    causes = list(_chain(error))
    text = mask(str(error))
    for cause in causes:
        match cause:
            case ssl.SSLCertVerificationError():
                has_ca = "ssl_ca_certs" in dict(server.options)
                return (
                    f"TLS: the server's certificate is not accepted ({cause.verify_message}); "
                    f"{'check' if has_ca else 'give'} ca_path, and check the name of the host"
                )
            case ssl.SSLError() if "WRONG_VERSION" in str(cause) or "RECORD_LAYER" in str(cause):
                return "TLS: the server does not speak TLS on this port; untick tls, or give the port for TLS"
            case ssl.SSLError() if "ALERT" in str(cause) or "alert" in str(cause):
                return f"TLS: the server refused the client ({cause.reason}); check cert_path and key_path"
            case ssl.SSLError():
                return f"TLS: ca_path, cert_path or key_path cannot be used ({cause.reason or cause})"
            case socket.gaierror():
                return "the name of the host is unknown"
            case ConnectionRefusedError():
                return "nothing listens at this host and port"
            case AuthenticationError():
                return f"the server refused the user or the password ({text})"
            case TimeoutError():
                is_tls = ", whether the server speaks TLS there," if server.tls else ""
                return f"no answer in time; check host and port{is_tls} and whether a firewall is between"
    if "invalid username-password" in text or "WRONGPASS" in text or "NOAUTH" in text:
        return f"the server refused the user or the password ({text})"
    if "DB index is out of range" in text:
        return f"the server has no database {server.db}"
    if "Connection closed by server" in text or "Connection reset" in text:
        is_tls = "the server closed the connection" if server.tls else "the server may expect TLS"
        return f"the connection was closed without an answer: {is_tls}"
    return f"{type(error).__name__}: {text}"


#: What opening a connection may raise.
CONNECT_ERRORS = (RedisError, RedisClusterException, MaxConnectionsError, OSError)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
