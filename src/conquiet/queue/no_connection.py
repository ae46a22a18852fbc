"""Why a client has no connection to its server, by what redis-py raised."""

from __future__ import annotations

import socket
import ssl
import traceback
from enum import Enum

from redis.exceptions import AuthenticationError, InvalidResponse, MovedError
from redis.sentinel import MasterNotFoundError

from conquiet.errors import causes_of


class NoConnection(Enum):
    """Why no connection came about; the value is a sentence in the words of a URL."""

    UNKNOWN_HOST = "the name of the host is unknown"
    REFUSED = "nothing listens at this host and port"
    NO_SOCKET = "there is no socket of this name"
    NO_ANSWER = "the server does not answer; check host and port, and whether a firewall is between"
    CLOSED = "the server closed the connection at once; if it expects TLS, use rediss:// instead of redis://"
    NO_REDIS = "what answers at this host and port is no Redis"
    NO_PASSWORD = "the server wants a password, which a URL has before its @"  # noqa: S105 -- a sentence
    WRONG_PASSWORD = "the server refused the user or the password"  # noqa: S105 -- a sentence
    NO_DATABASE = "the server has no database of this number"
    NO_TLS = (
        "the server does not speak TLS at this port; use redis:// instead of rediss://, or its port for TLS"
    )
    CERTIFICATE = (
        "the server's certificate is not accepted; give ssl_ca_certs, and check the name of the host"
    )
    CLIENT_CERTIFICATE = "the server refused the client; check ssl_certfile and ssl_keyfile"
    TLS = "TLS failed; check ssl_ca_certs, ssl_certfile and ssl_keyfile"
    NO_CLUSTER = "the server is not part of a cluster; use redis:// instead of redis+cluster://"
    CLUSTER = "the server is part of a cluster; use redis+cluster:// instead of redis://"
    SENTINEL_PASSWORD = "the Sentinel refused the login; its password is sentinel_password in the url"  # noqa: S105
    NO_PRIMARY = "no Sentinel that answers knows the service; check their hosts and its name"


def why_no_connection(error: BaseException) -> NoConnection | None:
    """Why there is no connection; `None` for an error of a connection that is there."""
    if isinstance(error, MasterNotFoundError):
        # redis-py has what the Sentinels said in its text alone.
        is_refused = "AuthenticationError" in str(error)
        return NoConnection.SENTINEL_PASSWORD if is_refused else NoConnection.NO_PRIMARY
    is_connecting = any(
        frame.f_code.co_name.startswith(("connect", "on_connect"))
        for frame, _line in traceback.walk_tb(error.__traceback__)
    )
    for cause in causes_of(error):
        reason = _reason_of(cause, is_connecting)
        if reason is not None:
            return reason
    return None


def _reason_of(cause: BaseException, is_connecting: bool) -> NoConnection | None:
    text = str(cause)
    match cause:
        case ssl.SSLCertVerificationError():
            return NoConnection.CERTIFICATE
        case ssl.SSLError():
            text = text.upper()
            if "WRONG_VERSION" in text or "RECORD_LAYER" in text:
                return NoConnection.NO_TLS
            # A server that wants a client's certificate ends the connection, with an alert or without.
            return NoConnection.CLIENT_CERTIFICATE if "ALERT" in text or "EOF" in text else NoConnection.TLS
        case socket.gaierror():
            return NoConnection.UNKNOWN_HOST
        case ConnectionRefusedError():
            return NoConnection.REFUSED
        case FileNotFoundError():
            return NoConnection.NO_SOCKET
        case AuthenticationError() if "HELLO must be called" in text or "Authentication required" in text:
            return NoConnection.NO_PASSWORD
        case AuthenticationError():
            return NoConnection.WRONG_PASSWORD
        case MovedError():
            return NoConnection.CLUSTER
        case InvalidResponse() if is_connecting:
            return NoConnection.NO_REDIS
        case ConnectionResetError() | BrokenPipeError() if is_connecting:
            return NoConnection.CLOSED
        case TimeoutError() if "handshake" in text:
            # A server without TLS waits for the rest of what it takes for a command.
            return NoConnection.NO_TLS
        case TimeoutError() if is_connecting:
            return NoConnection.NO_ANSWER
    if "DB index is out of range" in text:
        return NoConnection.NO_DATABASE
    if "cluster support disabled" in text:
        return NoConnection.NO_CLUSTER
    return None
