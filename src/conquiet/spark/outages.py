"""An unavailable server: what failed for that reason is tried again, for a bounded time."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from redis import exceptions
from redis.cluster import RedisCluster

from conquiet.errors import QueueError, causes_of
from conquiet.queue.connection import Client, visible_errors
from conquiet.queue.no_connection import NoConnection, why_no_connection
from conquiet.spark.address import StreamAddress

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Between two tries: doubled each time, and spread, so that tasks do not come back at the same moment.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 3.0

#: No reply, or one of a server that starts, fails over or moves a slot.
_PASSING = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.AskError,
    exceptions.TryAgainError,
    exceptions.ReadOnlyError,
    exceptions.SlotNotCoveredError,
    exceptions.RedisClusterException,
)
#: Subclasses of them that time does not change.
_LASTING = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.CrossSlotTransactionError,
    exceptions.MaxConnectionsError,
)

#: Why a client cannot connect, where only the user can change it; a cluster's own error has it as its cause.
_MISTAKES = (
    NoConnection.NO_PASSWORD,
    NoConnection.WRONG_PASSWORD,
    NoConnection.SENTINEL_PASSWORD,
    NoConnection.NO_DATABASE,
    NoConnection.NO_CLUSTER,
    NoConnection.CERTIFICATE,
)

#: The same in the reply of a script; a server that runs another script, has too few replicas or a full disk;
#: and a full server, which drains and trims free.
_PASSING_REPLY = re.compile(
    r"\b(LOADING|CLUSTERDOWN|TRYAGAIN|MASTERDOWN|READONLY|MOVED|ASK|BUSY|NOREPLICAS|MISCONF)\b"
    r"|used memory > 'maxmemory'"
)


def is_passing(error: QueueError) -> bool:
    """Whether the same call may succeed later, with nothing changed but the server."""
    cause = error.__cause__
    if isinstance(cause, _LASTING) or (cause is not None and _is_mistake(cause)):
        return False
    if isinstance(cause, _PASSING):
        return True
    return isinstance(cause, exceptions.ResponseError) and _PASSING_REPLY.search(str(cause)) is not None


def _is_mistake(cause: BaseException) -> bool:
    reason = why_no_connection(cause)
    if reason is NoConnection.NO_TLS:
        # A server that is paused answers no handshake either.
        return not any(isinstance(one, TimeoutError) for one in causes_of(cause))
    return reason in _MISTAKES


@dataclass(slots=True)
class Patience:
    """How long outages are waited for, each of them; a success ends one."""

    timeout_ms: int
    #: Tries so far that failed and were followed by another.
    retries: int = 0
    _since: float | None = field(default=None, init=False)
    _wait_s: float = field(default=_FIRST_WAIT_S, init=False)

    def wait(self, error: QueueError) -> None:
        """Wait before the next try.

        Raises:
            QueueError: the error itself, if it will not pass or the time is over.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not is_passing(error) or now - self._since >= self.timeout_ms / 1_000:
            raise error
        if self._wait_s == _FIRST_WAIT_S:
            _log.warning("tried again for up to %.0f s: %s", self.timeout_ms / 1_000, error)
        self.retries += 1
        time.sleep(self._wait_s * random.uniform(0.5, 1))  # noqa: S311 -- no secret
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)

    def end(self) -> None:
        """The server has answered."""
        self._since, self._wait_s = None, _FIRST_WAIT_S


def again_after_outages(call: Callable[[], _Result], patience: Patience) -> _Result:
    """What the call returns, which must be one that can be made again."""
    while True:
        try:
            result = call()
        except QueueError as error:
            patience.wait(error)
        else:
            patience.end()
            return result


def connected(address: StreamAddress, patience: Patience, call: Callable[[Client], _Result]) -> _Result:
    """What the call returns, with a client of its own for each try; it must be one that can be made again."""

    def connect_and_call() -> _Result:
        with address.connect() as client:
            return call(client)

    return again_after_outages(connect_and_call, patience)


@contextmanager
def connection_of_task(address: StreamAddress, patience: Patience) -> Iterator[Client]:
    """A client that is used until the task ends."""
    client = again_after_outages(address.connect, patience)
    with client:
        yield client


def find_servers(client: Client, stream: str) -> None:
    """Learn which server of a cluster has which keys now; the next connection goes there."""
    if not isinstance(client, RedisCluster):
        return
    with visible_errors("CLUSTER SLOTS", stream=stream, group=None):
        client.nodes_manager.initialize()
