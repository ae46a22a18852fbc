"""Catalogue: the names of all topics, plain streams and queues of tasks of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from redis.cluster import RedisCluster

from conquiet.mq import Topics
from conquiet.operations import is_plain_stream, queue_names
from conquiet.queue import Client
from conquiet.queue.connection import as_text, run_command

Kind = Literal["topic", "stream", "queue"]

#: Names are read again after this time.
_FRESH_S = 2.0
#: Keys that one step of the search looks at, and steps between two pauses.
_SCANNED_AT_ONCE = 500
_STEPS = 20
#: The search begins anew after this time, and finds at most so many streams.
_SEARCH_EVERY_S = 60.0
_MOST_STREAMS = 20_000


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Something with a backlog."""

    name: str
    kind: Kind


class Catalogue:
    """Knows every name; plain streams are found with SCAN, a few keys at a time."""

    def __init__(self, namespace: str, streams: Iterable[str]) -> None:
        self._namespace = namespace
        self._given = frozenset(streams)
        self._found: set[str] = set()
        self._searching: set[str] = set()
        self._cursor: int = 0
        self._next_search = 0.0
        self._subjects: tuple[float, tuple[Subject, ...]] = (0.0, ())
        self._lock = threading.Lock()

    def subjects(self, client: Client) -> tuple[Subject, ...]:
        """All of them, in the order of names; as they were up to two seconds ago.

        Raises:
            QueueError: Redis failed.
        """
        read_at, subjects = self._subjects
        if read_at and time.monotonic() - read_at < _FRESH_S:
            return subjects
        topics = set(Topics(client).names())
        streams = (self._given | self._found) - topics
        queues = queue_names(client, self._namespace) or ()
        found = [Subject(name, "topic") for name in topics] + [Subject(name, "stream") for name in streams]
        found += [Subject(name, "queue") for name in queues]
        self._subjects = (time.monotonic(), tuple(sorted(found)))
        return self._subjects[1]

    def search(self, client: Client) -> None:
        """A few steps of the search for plain streams; not on a cluster, where their names are given."""
        if isinstance(client, RedisCluster) or time.monotonic() < self._next_search:
            return
        with self._lock:
            for _ in range(_STEPS):
                command = ("SCAN", self._cursor, "TYPE", "stream", "COUNT", _SCANNED_AT_ONCE)
                reply: Any = run_command(client, *command, stream="(server)", group=None)
                self._cursor = int(reply[0])
                self._searching.update(filter(is_plain_stream, map(as_text, reply[1])))
                if self._cursor == 0 or len(self._searching) > _MOST_STREAMS:
                    self._found, self._searching, self._cursor = self._searching, set(), 0
                    self._next_search = time.monotonic() + _SEARCH_EVERY_S
                    return
