"""How the backlog and the database change while the workers run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import redis
from redis.exceptions import ResponseError

_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages of some streams for one group: the three parts are all of them."""

    acked: int = 0
    #: Delivered and not acked: at a worker, dead or alive.
    pending: int = 0
    #: Not delivered yet.
    waiting: int = 0

    @property
    def enqueued(self) -> int:
        """All messages."""
        return self.acked + self.pending + self.waiting

    @property
    def delivered(self) -> int:
        """Those that a worker was given at least once."""
        return self.acked + self.pending

    def __add__(self, other: Backlog) -> Backlog:
        return Backlog(self.acked + other.acked, self.pending + other.pending, self.waiting + other.waiting)


def read_backlog(client: redis.Redis, streams: tuple[str, ...], group: str) -> Backlog:
    """The streams of a group at this moment; a stream that is not there has no messages."""
    return sum((_read_one(client, stream, group) for stream in streams), Backlog())


def _read_one(client: redis.Redis, stream: str, group: str) -> Backlog:
    try:
        groups = {info["name"]: info for info in client.xinfo_groups(stream)}
    except ResponseError as error:
        if "no such key" not in str(error):
            raise
        return Backlog()
    if group not in groups:
        return Backlog(waiting=int(client.xlen(stream)))
    # One reply, so the parts belong together; the server knows the lag, since nothing is deleted or trimmed.
    info = groups[group]
    pending = int(info["pending"])
    # Before its first read the group does not say how many it was given.
    return Backlog(int(info["entries-read"] or 0) - pending, pending, int(info["lag"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One reading of all streams and of the database."""

    at_s: float
    #: Of the orders in the application's database.
    rows: int
    orders: Backlog
    #: Of the topic that Spark writes to, by who reads it.
    totals: Mapping[str, Backlog] = field(default_factory=dict)


@dataclass(slots=True)
class Span:
    """A stage of the demo, on the clock of its timeline."""

    title: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Timeline:
    """What happened when, in seconds from the first stage on."""

    moments: list[Moment] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    crash_s: float | None = None
    _began: float = field(default_factory=time.monotonic)

    def now_s(self) -> float:
        """Seconds since the timeline began."""
        return time.monotonic() - self._began

    def begin_again(self) -> None:
        """Set the clock to zero: what comes before is preparation."""
        self.spans.clear()
        self._began = time.monotonic()

    def mark_crash(self, at: float) -> None:
        """A worker was killed, on the clock of `time.monotonic()`."""
        self.crash_s = at - self._began


#: Rows of the orders, their backlog, and the backlog of each reader of the totals.
Reading = tuple[int, Backlog, Mapping[str, Backlog]]


class Watcher:
    """Reads ten times a second, in a thread of its own, for the length of the block."""

    def __init__(self, read: Callable[[], Reading], timeline: Timeline) -> None:
        self._read = read
        self._timeline = timeline
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="conquiet-demo-watcher", daemon=True)

    @property
    def latest(self) -> Moment | None:
        """The last reading, if there is one."""
        return self._timeline.moments[-1] if self._timeline.moments else None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _watch(self) -> None:
        try:
            while not self._is_over.wait(_EVERY_S):
                self._note()
            self._note()
        except Exception as error:  # noqa: BLE001 -- raised again where the block ends
            self._error = error

    def _note(self) -> None:
        rows, orders, totals = self._read()
        moment = Moment(at_s=self._timeline.now_s(), rows=rows, orders=orders, totals=dict(totals))
        self._timeline.moments.append(moment)
