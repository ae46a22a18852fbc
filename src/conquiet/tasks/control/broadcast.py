"""Broadcast: a request that every worker reads, and the answers of all of them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from conquiet.queue.connection import Client, run_command
from conquiet.queue.message import data_of
from conquiet.tasks.keys import answers_key, control_key
from conquiet.tasks.results import read_entries
from conquiet.tasks.scripts import control as scripts

#: Requests are kept for workers whose connection was lost for a while.
_REQUESTS = 1_000
_REQUESTS_MS = 3_600_000
#: Answers that are not read expire.
_ANSWERS_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of all workers, or of some."""

    command: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: Names of workers; `None` for all.
    workers: tuple[str, ...] | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def encode(self) -> str:
        """As the stream has it."""
        return json.dumps(
            {"id": self.id, "command": self.command, "workers": self.workers, "facts": self.facts}
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From the stream.

        Raises:
            ValueError: it is not a request.
        """
        found = json.loads(data)
        if not isinstance(found, dict) or not isinstance(found.get("facts"), dict):
            raise ValueError("not a request")  # noqa: TRY004 -- of data
        workers = found.get("workers")
        return cls(
            command=str(found.get("command")),
            facts=found["facts"],
            workers=None if workers is None else tuple(map(str, workers)),
            id=str(found.get("id")),
        )

    def is_for(self, *names: str | None) -> bool:
        """Whether it is for a worker with one of these names."""
        return self.workers is None or not set(self.workers).isdisjoint(names)


class Broadcast:
    """The stream of requests, and a stream of answers for each; no consumer group: every worker reads all."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._requests = control_key(namespace)

    def send(self, request: Request) -> None:
        """Ask all workers, also those that are busy."""
        scripts.broadcast(
            self._client, self._requests, request.encode(), length=_REQUESTS, keep_ms=_REQUESTS_MS
        )

    def collect(
        self, request: Request, expected: Collection[str], timeout_s: float
    ) -> dict[str, dict[str, Any] | None]:
        """The answer of each expected worker, `None` for one that has not answered in time."""
        stream, position = answers_key(self._namespace, request.id), "0-0"
        answers: dict[str, dict[str, Any] | None] = dict.fromkeys(expected)
        ends_at = time.monotonic() + timeout_s
        while None in answers.values() and (left_s := ends_at - time.monotonic()) > 0:
            for entry_id, data in self._read(stream, position, min(left_s, 1.0)):
                position = entry_id
                answer = json.loads(data)
                answers[answer["worker"]] = answer["facts"]
        run_command(self._client, "DEL", stream, stream=stream, group=None)
        return answers

    def answer(self, request_id: str, worker: str, facts: Mapping[str, Any]) -> None:
        """A worker's answer; it expires if nobody reads it."""
        data = json.dumps({"worker": worker, "facts": facts})
        stream = answers_key(self._namespace, request_id)
        scripts.broadcast(self._client, stream, data, length=_REQUESTS * 10, keep_ms=_ANSWERS_MS)

    def position(self) -> str:
        """Behind the last request so far."""
        reply = run_command(
            self._client, "XREVRANGE", self._requests, "+", "-", "COUNT", 1, stream=self._requests, group=None
        )
        return reply[0][0].decode() if reply else "0-0"

    def requests(self, position: str, wait_s: float) -> list[tuple[str, Request | None]]:
        """Requests behind a position, each with its own; `None` is one that this version cannot read."""
        found: list[tuple[str, Request | None]] = []
        for entry_id, data in self._read(self._requests, position, wait_s):
            try:
                found.append((entry_id, Request.decode(data)))
            except (ValueError, TypeError):
                found.append((entry_id, None))
        return found

    def _read(self, stream: str, position: str, wait_s: float) -> list[tuple[str, bytes]]:
        command = ("XREAD", "COUNT", 100, "BLOCK", max(1, round(wait_s * 1000)), "STREAMS", stream, position)
        reply = run_command(self._client, *command, stream=stream, group=None)
        found = []
        for entry_id, fields in read_entries(reply):
            try:
                found.append((entry_id, data_of(fields)))
            except ValueError:
                found.append((entry_id, b""))
        return found
