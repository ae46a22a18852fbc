"""MessageTrigger: one event for each message, which is acked after Airflow has stored the event."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Hashable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from airflow.configuration import conf
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from airflow_provider_conquiet.triggers.watched_stream import Watch
from conquiet import QueueMessage, load_handler

#: From Airflow 3.3 on.
HAS_ACK_CHANNEL = find_spec("airflow.triggers.shared_stream") is not None

if TYPE_CHECKING:
    from airflow_provider_conquiet.triggers.producer import MessageProducer

log = logging.getLogger(__name__)

#: Events are rows of Airflow's database.
_MAX_FIELDS_BYTES = 2_048
_MAX_BATCH = 256


class MessageTrigger(BaseEventTrigger):
    """Makes an event of each message of a group that is this watcher's alone; the event names it by its id.

    A message is acked after Airflow has stored its event, so none is lost and one may have two events; a
    message that cannot become an event becomes a dead letter. Before Airflow 3.3, which cannot report that an
    event is stored, this is the doorbell: `BacklogTrigger` on the same group, nothing is consumed.

    Args:
        group: one that nothing else reads; named after the other arguments if it is not given.
        match: "package.module:function" of a function from payload to bool, quick and without I/O: it runs in
            the triggerer. If it returns no, the message is acked without an event; if it raises, refused.
        fields: names of small payload fields that the event carries; Airflow keeps and shows them.
        start: where a group begins that does not exist yet.
        batch_events: one event for up to so many messages that are there at once: each event costs the
            triggerer some milliseconds. The event has `ids` then, and `fields` is a list.
        max_in_flight: how many messages may wait for Airflow; at most half of its subscriber queue is used.
        reread_s: how often messages are read again whose event was not stored.

    Examples:
        >>> trigger = MessageTrigger(stream="orders", fields=["order_id"])
        >>> orders = Asset("order_events", watchers=[AssetWatcher(name="orders", trigger=trigger)])
    """

    def __init__(
        self,
        *,
        stream: str,
        group: str | None = None,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        match: str | None = None,
        fields: Sequence[str] = (),
        start: Literal["beginning", "end"] = "beginning",
        batch_events: int = 1,
        max_in_flight: int = 256,
        reread_s: float = 30.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers are typed in part
        if start not in ("beginning", "end"):
            raise ValueError(f'start must be "beginning" or "end", got {start!r}')
        if max_in_flight < 1 or reread_s <= 0:
            raise ValueError(
                f"max_in_flight and reread_s must be above 0, got {max_in_flight!r} and {reread_s!r}"
            )
        if not 1 <= batch_events <= _MAX_BATCH:
            raise ValueError(f"batch_events must be between 1 and {_MAX_BATCH}, got {batch_events!r}")
        self.stream = stream
        self.redis_streams_conn_id = redis_streams_conn_id
        self.match = match
        self.fields = list(fields)
        self.start = start
        self.batch_events = batch_events
        self.max_in_flight = max_in_flight
        self.reread_s = reread_s
        self._doorbell: BacklogTrigger | None = None
        self.group = group if group is not None else f"airflow-{self._digest(stream)}"

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments that make this trigger again."""
        return (
            f"{MessageTrigger.__module__}.{MessageTrigger.__qualname__}",
            {
                "stream": self.stream,
                "group": self.group,
                "redis_streams_conn_id": self.redis_streams_conn_id,
                "match": self.match,
                "fields": self.fields,
                "start": self.start,
                "batch_events": self.batch_events,
                "max_in_flight": self.max_in_flight,
                "reread_s": self.reread_s,
            },
        )

    def shared_stream_key(self) -> Hashable | None:
        """What makes Airflow use its ack channel; no two watchers have the same, so they share nothing."""
        if not HAS_ACK_CHANNEL:
            return None
        return ("conquiet", self.redis_streams_conn_id, self.stream, self.group, self.consumer)

    @property
    def consumer(self) -> str:
        """The same wherever and whenever this trigger runs: its pending messages are found under it."""
        return f"watcher-{self._digest(self.stream, self.group)}"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> MessageProducer:
        """The reading and acking half of this trigger, for Airflow's ack channel."""
        from airflow_provider_conquiet.triggers.producer import MessageProducer

        trigger = cls(**kwargs)
        watch = Watch(
            redis_streams_conn_id=trigger.redis_streams_conn_id,
            stream=trigger.stream,
            group=trigger.group,
            consumer=trigger.consumer,
            from_end=trigger.start == "end",
            reread_s=trigger.reread_s,
        )
        # A subscriber queue that overflows ends its trigger.
        queue_size = conf.getint("triggerer", "shared_stream_subscriber_queue_size")
        most = max(1, min(trigger.max_in_flight, queue_size // 2))
        return MessageProducer(watch, max_in_flight=most, batch_events=trigger.batch_events)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Make events of messages; raises for none of them, which Airflow would take for a yes."""
        match = None if self.match is None else load_handler(self.match)
        async for received in shared_stream:
            events = []
            for msg in received.msgs:
                try:
                    if match is None or match(msg.payload):
                        events.append(self._event(msg))
                except Exception as error:  # noqa: BLE001 -- the message becomes a dead letter with it
                    received.refusals[msg.id] = f"{type(error).__name__}: {error}"[:500]
            if events:
                event = events[0] if self.batch_events == 1 else _joined(events)
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
            # Only now: a trigger that is cancelled at its `yield` does not come here.
            received.passed += 1

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The doorbell, where Airflow has no ack channel."""
        self._doorbell = BacklogTrigger(
            stream=self.stream, group=self.group, redis_streams_conn_id=self.redis_streams_conn_id
        )
        log.warning(
            "this Airflow does not report when an event is stored: ringing for %s, consuming nothing",
            self.stream,
        )
        async for event in self._doorbell.run():
            yield event

    async def cleanup(self) -> None:
        """Close the doorbell's client; the ack channel closes its own."""
        if self._doorbell is not None:
            await self._doorbell.cleanup()

    def _event(self, msg: QueueMessage) -> dict[str, Any]:
        event: dict[str, Any] = {"stream": msg.stream, "group": msg.group, "id": msg.id}
        if self.fields:
            carried = {name: msg.payload[name] for name in self.fields if name in msg.payload}
            size = len(json.dumps(carried))
            if size > _MAX_FIELDS_BYTES:
                raise ValueError(f"the fields {self.fields} are {size} bytes, above {_MAX_FIELDS_BYTES}")
            event["fields"] = carried
        return event

    def _digest(self, *names: str) -> str:
        # Not of what may be tuned without becoming another watcher.
        parts = [*names, self.redis_streams_conn_id, self.match, self.fields]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _joined(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One event for many messages."""
    event = {"stream": events[0]["stream"], "group": events[0]["group"], "ids": [one["id"] for one in events]}
    return event | ({"fields": [one["fields"] for one in events]} if "fields" in events[0] else {})
