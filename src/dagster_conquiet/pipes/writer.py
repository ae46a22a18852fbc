"""The external process: each Pipes message is one entry of a stream, written before the call returns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dagster_pipes import PipesMessage, PipesMessageWriter, PipesMessageWriterChannel, PipesParams

from conquiet.queue import Client, open_client

URL_VARIABLE = "CONQUIET_REDIS_URL"

#: The names of the parameters that the reader sends.
STREAM_PARAM = "conquiet_stream"
URL_PARAM = "conquiet_url"
TTL_PARAM = "conquiet_ttl_ms"


class RedisStreamMessageChannel(PipesMessageWriterChannel):
    """Adds messages to the stream that the launching side reads."""

    def __init__(self, client: Client, stream: str, ttl_ms: int) -> None:
        self._client = client
        self._stream = stream
        self._ttl_ms = ttl_ms

    def write_message(self, message: PipesMessage) -> None:
        """Add one message; when this returns the server has it, whatever happens to this process."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xadd(self._stream, {"data": json.dumps(message)})
        # The reader deletes the stream; this is for the case that it died.
        pipeline.pexpire(self._stream, self._ttl_ms)
        pipeline.execute()


class RedisStreamMessageWriter(PipesMessageWriter[RedisStreamMessageChannel]):
    """Give it to `open_dagster_pipes(message_writer=…)`.

    The server is `url`, else what the launching side sent, else the variable CONQUIET_REDIS_URL.
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
            yield RedisStreamMessageChannel(client, params[STREAM_PARAM], params[TTL_PARAM])
        finally:
            client.close()
