"""Spans: the spans of one consumer's messages, from their read to their settlement."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from conquiet.consume.channel import Message
from conquiet.consume.outcome import Settlement
from conquiet.logs import message_fields
from conquiet.queue import QueueMessage
from conquiet.tracing import Where, active_traces

if TYPE_CHECKING:
    from conquiet.tracing.traces import Processing, Traces


class Spans:
    """Makes spans while tracing is on; off, each call costs one look-up."""

    def __init__(self, where: Where, stream: str) -> None:
        self._where = where
        self._stream = stream
        #: Of messages that were read and not settled.
        self._contexts: dict[str, Any] = {}

    @property
    def are_on(self) -> bool:
        """Whether acks and reads are to be calls of their own, so that a wait is not shown as an ack."""
        return active_traces() is not None

    def received(self, messages: Sequence[Message], started_ns: int) -> None:
        """A read that began then has delivered these."""
        traces = active_traces()
        if traces is None:
            return
        times = (started_ns, time.time_ns())
        for msg in messages:
            if msg.id in self._contexts:
                # Parked, and received before.
                continue
            carried = traces.carried_by(msg.payload) if isinstance(msg, QueueMessage) else msg.headers  # type: ignore[attr-defined]
            self._contexts[msg.id] = traces.received(
                self._where, msg.id, carried, times=times, count=len(messages)
            )

    @contextmanager
    def processing(self, traces: Traces, messages: Sequence[Message]) -> Iterator[list[Processing]]:
        """The message is in its handler, or the batch; each `Processing` is to be `ended` afterwards."""
        with ExitStack() as stack:
            begun = []
            for msg in messages:
                origin = self._contexts.get(msg.id)
                processing = stack.enter_context(traces.processing(self._where, msg.id, origin))
                self._contexts[msg.id] = processing.context
                begun.append(processing)
            yield begun

    def log_fields(self, entry_id: str, **known: Any) -> dict[str, Any]:
        """The `extra` of a log line about an entry."""
        where = self._where
        facts = {
            "topic": None if where.partition is None else where.destination,
            "stream": self._stream,
            "partition": where.partition,
            "group": where.group,
            "message_id": entry_id,
            "consumer": where.consumer,
        }
        return message_fields(context=self._contexts.get(entry_id), **facts | known)

    def settled(self, settlements: Sequence[Settlement], started_ns: int, error: str | None = None) -> None:
        """A call that began then has settled these, or has failed."""
        traces = active_traces()
        if traces is None:
            self._contexts.clear()
            return
        times = (started_ns, time.time_ns())
        for settlement in settlements:
            if settlement.kind == "begin" and not settlement.is_refused:
                continue
            context = self._contexts.pop(settlement.entry_id, None)
            if context is not None and settlement.kind not in ("begin", "leave", "hand_back"):
                refused = (
                    "claimed by another consumer before it was settled" if settlement.is_refused else None
                )
                traces.settled(
                    settlement.kind,
                    self._where,
                    settlement.entry_id,
                    context,
                    times=times,
                    error=error or refused,
                )
