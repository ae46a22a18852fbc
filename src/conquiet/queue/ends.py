"""EndWatch: what this process knows to be in streams, and whether a failover has lost some of it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha1

import redis
from redis.cluster import RedisCluster
from redis.exceptions import NoPermissionError

from conquiet.queue.connection import REDIS_ERRORS, Client, execute, key_beside, queue_error
from conquiet.queue.message import entry_id_order
from conquiet.queue.metrics import count_lost
from conquiet.queue.scripts.ends import EndCheck, check_ends, count_loss, missing

_log = logging.getLogger(__name__)

#: How often a process that is busy checks.
_CHECK_EVERY_S = 1.0
#: A producer checks before it sends after such a pause: no failover is shorter. What is sent before the check
#: would hide where the new primary's stream had ended.
_PAUSE_S = 0.1
#: For so long a mark is there for certain; it expires after a month without a change.
_MARKED_FOR_S = 24 * 3600.0
#: Entry ids of messages sent that are remembered, of all streams together.
_MOST_IDS = 10_000
#: Entry ids that a line of the log names.
_IDS_IN_A_LINE = 100
#: Which batches of what this process sent are looked for, counted from the newest.
_SAMPLED = (*range(1, 9), *(2**power for power in range(4, 14)))


@dataclass(slots=True)
class _Known:
    """What is known of one stream."""

    mark: str
    #: Whether entries are deleted when they are finished: what is missing before the end was not lost.
    deletes: bool = False
    #: The newest entry that is known: its id, and the digest of its fields, "-" if it may be trimmed; or its
    #: data, of which the digest is not made yet. One value, since one thread may read while another checks.
    newest: tuple[str, str | bytes] = ("0-0", "-")
    #: Entries ever added, up to that of the last check.
    added: int | None = None
    epoch: int = 0
    #: Until then, in monotonic time, the server must have the mark.
    marked_until: float = 0.0
    #: Monotonic times: of the next check, and from which on a producer has paused.
    next_check: float = field(default_factory=lambda: time.monotonic() + _CHECK_EVERY_S)
    pause_from: float = field(default_factory=lambda: time.monotonic() + _PAUSE_S)
    #: Ids of messages sent by this process, oldest first.
    sent: deque[list[str]] = field(default_factory=deque)


class EndWatch:
    """Knows the ends of streams, and checks them now and then.

    A loss is logged, counted, and written to the stream's mark, where `conquiet doctor` finds it.

    Raises:
        QueueError: of a check, if the server does not answer: neither will it what the caller does next.
    """

    def __init__(self, client: Client, who: str = "") -> None:
        self._client = client
        #: Named in reports: a consumer, or this process.
        self.who = who or f"{socket.gethostname()}:{os.getpid()}"
        self._known: dict[str, _Known] = {}
        #: The streams of the batches of ids that are remembered, and how many ids those are.
        self._order: deque[_Known] = deque()
        self._ids = 0
        self._is_refused = False
        #: One check at a time, and one change of what was sent.
        self._check_lock = threading.Lock()
        self._sent_lock = threading.Lock()

    def watch(self, stream: str, mark: str | None = None, *, deletes: bool = False) -> _Known:
        """Know the end of this stream from the next check on.

        Args:
            mark: the key of its mark, if that is not `end_mark`.
            deletes: entries are deleted when they are finished: only those behind the end are lost.
        """
        known = self._known.get(stream)
        if known is None:
            known = _Known(mark or end_mark(stream), deletes)
            self._known[stream] = known
            # Prometheus sees no increase in a counter that appears with its first event.
            count_lost(stream, 0)
        return known

    def __contains__(self, stream: str) -> bool:
        return stream in self._known

    def sent(self, stream: str, ids: list[str], data: bytes | None = None) -> None:
        """These were added, in order; without the data of the last one, it may be trimmed by now."""
        if not ids:
            return
        known, last_id = self._known.get(stream) or self.watch(stream), ids[-1]
        if _is_before(last_id, known.newest[0]):
            # The stream has gone back: a check says why.
            known.next_check = 0.0
        else:
            known.newest = last_id, "-" if data is None else data
        with self._sent_lock:
            known.sent.append(ids)
            self._order.append(known)
            self._ids += len(ids)
            while self._ids > _MOST_IDS and len(self._order) > 1:
                self._ids -= len(self._order.popleft().sent.popleft())

    def seen(self, stream: str, entry_id: str, data: bytes) -> None:
        """This entry was read from a stream that is watched."""
        known = self._known.get(stream)
        if known is not None and _is_before(known.newest[0], entry_id):
            known.newest = entry_id, data

    def check_before_send(self, *streams: str) -> None:
        """Check those of the streams for which it is time, or that had a pause."""
        now, due = time.monotonic(), []
        for stream in streams:
            known = self._known.get(stream)
            if known is not None:
                if now >= known.pause_from or now >= known.next_check:
                    due.append(stream)
                known.pause_from = now + _PAUSE_S
        if due:
            self.check(*due)

    def check_if_due(self, stream: str, mark: str | None = None) -> None:
        """Watch the stream, and check it if it is time; with a mark, it is a topic's partition."""
        if time.monotonic() >= self.watch(stream, mark).next_check:
            self.check(stream)

    def check(self, *streams: str) -> None:
        """Compare what is known of these streams with the server now."""
        if self._is_refused or not self._check_lock.acquire(blocking=False):
            return
        try:
            known = [self._known[stream] for stream in streams]
            calls = [
                (stream, one.mark, self._arguments(one)) for stream, one in zip(streams, known, strict=True)
            ]
            now = time.monotonic()
            for one in known:
                one.next_check = now + _CHECK_EVERY_S
            for stream, one, reply in zip(streams, known, check_ends(self._client, calls), strict=True):
                if isinstance(reply, EndCheck) and reply.state == "unmarked":
                    state = "deleted" if self._is_deleted(stream, one) else "not deleted"
                    (reply,) = check_ends(self._client, [(stream, one.mark, self._arguments(one, state))])
                if isinstance(reply, Exception):
                    self._failed(stream, reply)
                else:
                    self._checked(stream, one, reply)
        except REDIS_ERRORS as error:
            self._failed(streams[0], error)
        finally:
            self._check_lock.release()

    def _is_deleted(self, stream: str, known: _Known) -> bool:
        try:
            at_ms = execute(self._client, "ZSCORE", deleted_streams_key(self._client), stream)
        except NoPermissionError:
            # A report too many can be seen through; one too few is silent.
            return False
        return at_ms is not None and float(at_ms) >= entry_id_order(known.newest[0])[0]

    def _arguments(self, known: _Known, deletion: str = "") -> list[str | int]:
        newest, digest = known.newest
        if isinstance(digest, bytes):
            digest = sha1(b"data" + digest[:1020], usedforsecurity=False).hexdigest()
        added = "" if known.added is None else known.added
        with self._sent_lock:
            # The last ids of some batches: messages sent after a failover do not hide what it lost before.
            sample = [known.sent[-back][-1] for back in _SAMPLED if back <= len(known.sent)]
        older = [part for entry_id in sample if entry_id != newest for part in (entry_id, "")]
        is_marked = int(time.monotonic() < known.marked_until)
        return [deletion, known.epoch, is_marked, added, self.who, newest, digest, *older]

    def _checked(self, stream: str, known: _Known, now: EndCheck) -> None:
        if now.state == "lost":
            self._report(stream, known, now)
        elif now.state == "deleted":
            text = "stream %r was deleted, or created again, since its entry %s was added"
            _log.warning(text, stream, known.newest[0])
        if now.state != "kept":
            with self._sent_lock:
                self._ids -= sum(map(len, known.sent))
                known.sent.clear()
                self._order = deque(other for other in self._order if other is not known)
        known.newest = now.last_id, "-" if known.deletes else now.digest
        known.added, known.epoch = now.added, now.epoch
        known.marked_until = 0.0 if now.last_id == "0-0" else time.monotonic() + _MARKED_FOR_S

    def _failed(self, stream: str, error: Exception) -> None:
        if isinstance(error, redis.ConnectionError | redis.TimeoutError):
            raise queue_error("check the end", error, stream=stream, group=None) from error
        if "NOPERM" in str(error) or "permission" in str(error):
            self._is_refused = True
            text = "a failover's losses will not be reported for stream %r: its mark needs rights: %s"
            _log.info(text, stream, error)
        else:
            _log.debug("the end of stream %r could not be checked: %s", stream, error)

    def _report(self, stream: str, known: _Known, now: EndCheck) -> None:
        after = entry_id_order(now.after)
        with self._sent_lock:
            suspects = [one for ids in known.sent for one in ids if entry_id_order(one) > after]
        # What this process sent and is not in the stream any more.
        ids = missing(self._client, stream, suspects)
        last_id = max([now.newest_lost, *ids], key=entry_id_order)
        more = count_loss(
            self._client, known.mark, now.epoch, lost=now.lost or 0, sent=len(ids), last_id=last_id
        )
        count_lost(stream, more)
        text = (
            "stream %r has lost entries, as in a failover to a replica that lagged: behind %s%s, up to %s at "
            "least, %s of them; %s were sent by this process, seen by %s, epoch %s"
        )
        about = "" if now.is_exact else ", some of those"
        count = max(now.lost or 0, len(ids), 1)
        facts = (stream, now.after, about, last_id, count, len(ids), self.who, now.epoch)
        _log.error(text, *facts)
        for start in range(0, len(ids), _IDS_IN_A_LINE):
            some = ids[start : start + _IDS_IN_A_LINE]
            _log.error("stream %r has lost what this process sent: %s", stream, " ".join(some))


def deleted_streams_key(client: Client) -> str:
    """Sorted set: the streams of topics that were deleted lately, by the time in ms."""
    return (
        "{streaming:mq}:topics:deleted" if isinstance(client, RedisCluster) else "streaming:mq:topics:deleted"
    )


def end_mark(stream: str) -> str:
    """The key of the mark of a plain stream."""
    return key_beside(stream, "end")


def _is_before(entry_id: str, other: str) -> bool:
    # Quicker, and nearly always so: milliseconds of 13 digits, numbers of as many.
    if entry_id[13:14] == other[13:14] == "-" and len(entry_id) == len(other):
        return entry_id < other
    return entry_id_order(entry_id) < entry_id_order(other)
