"""DrainLog: a drain as its task's log shows it, from its backlog to its report."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Self

from sqlalchemy import Engine

from airflow_provider_conquiet.lock_waits import LockWaits
from conquiet import BacklogStats, ConquietError, DeadLetter, DrainReport, Retry
from conquiet.consume import Handler
from conquiet.consume.batch_handler import BatchHandler
from conquiet.consume.handling import check_handler
from conquiet.errors import text_of

log = logging.getLogger(__name__)

#: How many consumers and errors the log names, and how long an error's text may be.
_MOST_NAMED = 10
_MOST_TEXT = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """What a drain begins with."""

    #: "stream 'orders'", as the log names it.
    name: str
    group: str
    consumer: str
    backlog: BacklogStats
    #: The consumers of ended tries of the task, by the number of the try.
    ended_tries: Mapping[str, str]


class DrainLog:
    """Logs the begin, every few seconds what was done since, and what is waited for.

    Its thread only reads: the backlog, and the locks of the database.

    Args:
        backlog: reads what is left.
        every_s: how often; `None` for begin and report alone.
    """

    def __init__(
        self, begin: Begin, engine: Engine, backlog: Callable[[], BacklogStats], *, every_s: float | None
    ) -> None:
        self._begin = begin
        self._backlog = backlog
        self._every_s = every_s
        self._waits = LockWaits(engine)
        self._lock = threading.Lock()
        self._ended = 0
        self._errors: Counter[str] = Counter()
        #: What is in a handler: its entry id and since when, by the thread that handles it.
        self._in_handler: dict[int, tuple[str, float]] = {}
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def counted(self, handler: Handler) -> Handler:
        """The handler, seen by this log.

        Raises:
            TypeError: it cannot be called as handler(msg, session).
        """
        # Here, since the engine sees a plain function.
        check_handler(handler, arguments=2)

        def counting(given: Any, *arguments: Any) -> Any:
            msgs = given if isinstance(given, Sequence) else [given]
            thread = threading.get_ident()
            with self._lock:
                self._in_handler[thread] = (msgs[0].id if msgs else "", time.monotonic())
            error: BaseException | None = None
            answer: Any = None
            try:
                answer = handler(given, *arguments)
            except BaseException as raised:
                error = raised
                raise
            finally:
                # Of a batch that has failed each message is handled again by itself, and counted then.
                is_again = len(msgs) > 1 and (error is not None or isinstance(answer, Retry | DeadLetter))
                with self._lock:
                    del self._in_handler[thread]
                    if not is_again:
                        self._ended += len(msgs)
                        failed = error if error is not None else answer
                        if isinstance(failed, BaseException | Retry | DeadLetter):
                            self._errors[type(failed).__name__] += 1
            return answer

        if isinstance(handler, BatchHandler):
            return BatchHandler(counting)
        return update_wrapper(counting, handler)

    def __enter__(self) -> Self:
        begin, backlog = self._begin, self._begin.backlog
        lag = "an unknown number" if backlog.lag is None else backlog.lag
        ages = [backlog.oldest_pending_age_ms, backlog.oldest_undelivered_age_ms]
        oldest_ms = max((age for age in ages if age is not None), default=None)
        log.info(
            "draining %s for group %r as consumer %r: %s new, %s pending%s",
            *(begin.name, begin.group, begin.consumer, lag, backlog.pending),
            "" if oldest_ms is None else f", the oldest was enqueued {oldest_ms / 1000:.0f} s ago",
        )
        pending = [one for one in backlog.consumers if one.pending]
        for one in pending[:_MOST_NAMED]:
            number = begin.ended_tries.get(one.name)
            if number is not None:
                log.info("taking over from try %s: %s messages that it left pending", number, one.pending)
            elif one.name != begin.consumer:
                log.info(
                    "%s messages are pending at consumer %r, idle for %.0f s",
                    *(one.pending, one.name, one.idle_ms / 1000),
                )
        if len(pending) > _MOST_NAMED:
            log.info("and %s more consumers have pending messages", len(pending) - _MOST_NAMED)
        self._waits.begin()
        if self._every_s is not None:
            self._thread = threading.Thread(
                target=self._show_progress, name="conquiet-drain-log", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._waits.end()
        report = getattr(error, "drain_report", None) or getattr(error, "report", None)
        if isinstance(report, DrainReport):
            self.show(report)

    def show(self, report: DrainReport) -> None:
        """Log the report, one line for each count that is not 0, and the errors by their type."""
        rate = f", {report.read / report.seconds:.0f} a second" if report.read and report.seconds else ""
        log.info(
            "drained %s for group %r: stopped by %s after %.1f s%s",
            *(self._begin.name, self._begin.group, report.stopped_by, report.seconds, rate),
        )
        for name, count in report.counts.items():
            if count or name == "read":
                log.info("  %-18s %s", name, count)
        if report.pending_elsewhere:
            idle_s = report.elsewhere_idle_ms / 1000
            log.info(
                "  %-18s %s, idle for up to %.0f s", "pending elsewhere", report.pending_elsewhere, idle_s
            )
        by_type: dict[str, list[Any]] = {}
        for failure in report.failures:
            by_type.setdefault(type(failure.error).__name__, []).append(failure)
        for kind, failures in sorted(by_type.items(), key=lambda item: -len(item[1]))[:_MOST_NAMED]:
            first = failures[0]
            text = " ".join(text_of(first.error).split())[:_MOST_TEXT]
            log.info("  %-18s %s, the first is %s: %s", kind, len(failures), first.id, text)

    def _show_progress(self) -> None:
        every_s = self._every_s or 0.0
        shown, shown_at = 0, time.monotonic()
        while not self._is_over.wait(every_s):
            now = time.monotonic()
            with self._lock:
                ended, errors = self._ended, dict(self._errors)
                slowest = min(self._in_handler.values(), key=lambda one: one[1], default=None)
            if ended > shown:
                failed = ", ".join(f"{count} {name}" for name, count in sorted(errors.items()))
                log.info(
                    "%s messages handled, %.0f a second, %s left%s",
                    *(ended - sum(errors.values()), (ended - shown) / (now - shown_at), self._left()),
                    f"; failed: {failed}" if failed else "",
                )
                shown, shown_at = ended, now
                # With several handlers at once, one may wait while the others go on.
                if slowest is None or now - slowest[1] < every_s:
                    continue
            for sentence in self._waits.sentences():
                log.warning(sentence)
            if slowest is not None:
                log.info("entry %s has been in the handler for %.0f s", slowest[0], now - slowest[1])

    def _left(self) -> str:
        try:
            backlog = self._backlog()
        except ConquietError as error:
            return f"an unknown number ({error})"
        return f"an unknown number and {backlog.pending} pending" if backlog.lag is None else str(backlog.lag)
