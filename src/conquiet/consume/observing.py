"""ObservedHandling: the messages of one plain queue, each with its spans and its name in the logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from conquiet.consume.handling import MessageHandling, Outcome
from conquiet.logs import message_fields
from conquiet.queue import QueueMessage, RedisStreamsQueue
from conquiet.tracing import Where, active_traces

if TYPE_CHECKING:
    from conquiet.tracing.traces import Traces


class ObservedHandling:
    """Handles and acks, and tells both; while tracing is off it asks once for each message and each call."""

    def __init__(self, queue: RedisStreamsQueue, handling: MessageHandling) -> None:
        self._queue = queue
        self._handling = handling
        config = queue.config
        self.consumer = config.consumer_name
        #: The message in the handler.
        self.handled: QueueMessage | None = None
        self._where = Where(
            destination=config.stream_key, group=config.consumer_group, consumer=config.consumer_name
        )
        #: When the last read began and ended, and how many messages it brought.
        self._read: tuple[int, int, int] = (0, 0, 0)
        #: The contexts of messages that were handled and not acked, or that failed last.
        self._contexts: dict[str, Any] = {}

    @property
    def is_traced(self) -> bool:
        """Whether acks and reads are to be calls of their own, so that a wait is not told as an ack."""
        return active_traces() is not None

    def has_read(self, started_ns: int, count: int) -> None:
        """A read that began then has delivered so many messages."""
        self._read = (started_ns, time.time_ns(), count)

    def handle(self, msg: QueueMessage) -> Outcome:
        """As `MessageHandling.handle`."""
        self.handled = msg
        try:
            traces = active_traces()
            return self._handling.handle(msg) if traces is None else self._traced(traces, msg)
        finally:
            self.handled = None

    def ack(self, entry_ids: Sequence[str]) -> None:
        """As `RedisStreamsQueue.ack_ids`."""
        traces = active_traces()
        if traces is None or not entry_ids:
            self._queue.ack_ids(entry_ids)
            return
        started, error = time.time_ns(), None
        try:
            self._queue.ack_ids(entry_ids)
        except Exception as raised:
            error = str(raised)
            raise
        finally:
            times = (started, time.time_ns())
            for entry_id in entry_ids:
                context = self._contexts.pop(entry_id, None)
                if context is not None:
                    traces.settled("ack", self._where, entry_id, context, times=times, error=error)

    def extra_of(self, entry_id: str) -> dict[str, Any]:
        """What a log line about an entry that failed hands over."""
        place = {"stream": self._where.destination, "group": self._where.group, "message_id": entry_id}
        context = self._contexts.pop(entry_id, None)
        return message_fields(context=context, consumer=self.consumer, **place)

    def _traced(self, traces: Traces, msg: QueueMessage) -> Outcome:
        started, ended, count = self._read
        carried, times = traces.carried_by(msg.payload), (started, ended)
        origin = traces.received(self._where, msg.id, carried, times=times, count=count)
        with traces.processing(self._where, msg.id, origin) as processing:
            self._contexts[msg.id] = processing.context
            outcome = self._handling.handle(msg)
            processing.ended(outcome.value)
            return outcome
