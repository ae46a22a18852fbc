"""The external process: each Pipes message is one entry of a stream, written before the call returns."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dagster_pipes import PipesMessage, PipesMessageWriter, PipesMessageWriterChannel, PipesParams
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.queue import Client, open_client

URL_VARIABLE = "CONQUIET_REDIS_URL"

#: The names of the parameters that the reader sends.
STREAM_PARAM = "conquiet_stream"
URL_PARAM = "conquiet_url"
TTL_PARAM = "conquiet_ttl_ms"
RECONNECT_PARAM = "conquiet_reconnect_s"

#: For how long a message is written again while the connection is broken, unless the reader says; and the
#: pause between two times.
_RECONNECT_S = 60.0
_PAUSE_S = 0.2


class RedisStreamMessageChannel(PipesMessageWriterChannel):
    """Adds messages to the stream that the launching side reads, each with its number."""

    def __init__(
        self, client: Client, stream: str, ttl_ms: int, *, reconnect_s: float = _RECONNECT_S
    ) -> None:
        self._client = client
        self._stream = stream
        self._ttl_ms = ttl_ms
        self._reconnect_s = reconnect_s
        #: By its numbers the reader knows what is missing, and what came twice.
        self._writer = uuid.uuid4().hex
        self._number = 0
        self._lock = threading.Lock()

    def write_message(self, message: PipesMessage) -> None:
        """Add one message; when this returns the server has it, whatever happens to this process.

        While the connection is broken it is tried again; then the error is raised.
        """
        with self._lock:
            self._number += 1
            fields: dict[Any, Any] = {
                "data": json.dumps(message),
                "writer": self._writer,
                "number": self._number,
            }
            give_up_at = time.monotonic() + self._reconnect_s
            while True:
                try:
                    self._add(fields)
                except (RedisConnectionError, RedisTimeoutError):
                    if time.monotonic() >= give_up_at:
                        raise
                    time.sleep(_PAUSE_S)
                else:
                    return

    def _add(self, fields: dict[Any, Any]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xadd(self._stream, fields)
        # The reader deletes the stream; this is for the case that it died.
        pipeline.pexpire(self._stream, self._ttl_ms)
        pipeline.execute()


class RedisStreamMessageWriter(PipesMessageWriter[RedisStreamMessageChannel]):
    """Give it to `open_dagster_pipes(message_writer=…)`.

    The server is `url`, else what the launching side sent, else the variable CONQUIET_REDIS_URL.

    Examples:
        >>> writer = RedisStreamMessageWriter("redis://redis.example.com:6379/0")
        >>> # in the external process: with open_dagster_pipes(message_writer=writer) as pipes: …
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._url = url
        self._options = options

    @contextmanager
    def open(self, params: PipesParams) -> Iterator[RedisStreamMessageChannel]:
        """Connect, and close the connection at the end."""
        url = self._url or params.get(URL_PARAM) or os.environ.get(URL_VARIABLE)
        if not url:
            raise ValueError(
                f"RedisStreamMessageWriter does not know the server: give it a url, set {URL_VARIABLE}, or "
                "let the RedisStreamMessageReader send one with writer_url"
            )
        client = open_client(url, **self._options)
        try:
            yield RedisStreamMessageChannel(
                client,
                params[STREAM_PARAM],
                params[TTL_PARAM],
                reconnect_s=params.get(RECONNECT_PARAM, _RECONNECT_S),
            )
        finally:
            client.close()
