"""LeanPool: redis-py's pool of connections, with a checkout that costs a third."""

from __future__ import annotations

import os
from typing import Any

import redis
from redis.connection import AbstractConnection
from redis.exceptions import RedisError

try:
    from redis.observability import get_observability_instance

    #: Of the one instance in the process.
    _measuring = get_observability_instance().get_provider_manager
except ImportError:
    # An earlier redis-py has no metrics of its own.
    _measuring = None  # type: ignore[assignment]


def is_measured() -> bool:
    """Whether redis-py's own metrics are on."""
    return _measuring is not None and _measuring() is not None


class _Process:
    """This process, known without asking the kernel, which takes longer than a checkout."""

    def __init__(self) -> None:
        self.pid = os.getpid()


_process = _Process()
os.register_at_fork(after_in_child=_process.__init__)  # type: ignore[misc]


class LeanPool(redis.ConnectionPool):
    """A pool whose usual case is short: a connection is there, in step and connected.

    All other cases are redis-py's own: the first connection, one that was lost, a fork, metrics.
    """

    def get_connection(self, *command: Any, **options: Any) -> Any:
        """A connection that is ready; as redis-py it looks at the socket first, which may be closed."""
        if self.pid == _process.pid and not is_measured():
            connection = None
            with self._lock:
                if self._available_connections:
                    connection = self._available_connections.pop()
                    self._in_use_connections.add(connection)
            if connection is not None:
                is_ready = False
                try:
                    is_ready = connection.is_connected and not connection.can_read()
                except (RedisError, OSError):
                    connection.disconnect()
                finally:
                    if not is_ready:
                        # On top, where redis-py takes it and connects it again.
                        super().release(connection)
                if is_ready:
                    return connection
        return super().get_connection(*command, **options)

    def release(self, connection: Any) -> None:
        """Give a connection back."""
        if self.pid != _process.pid or connection.should_reconnect() or is_measured():
            super().release(connection)
            return
        with self._lock:
            if connection in self._in_use_connections:
                self._in_use_connections.remove(connection)
                self._available_connections.append(connection)
                # For credentials that expire.
                connection.re_auth()


#: An earlier redis-py does not say of a connection whether it is there.
POOL = LeanPool if hasattr(AbstractConnection, "should_reconnect") else redis.ConnectionPool
