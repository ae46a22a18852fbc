"""EnqueueOperator: messages into a stream or a topic, once per task instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.attempts import TaskTry
from airflow_provider_conquiet.hooks.redis_streams import ONE_DAY_MS, Payload, RedisStreamsHook
from airflow_provider_conquiet.refusals import refused_at_once
from airflow_provider_conquiet.reports import Report, enqueue_report, tell_assets
from airflow_provider_conquiet.traces import task_span
from conquiet.mq import Message, Topic

if TYPE_CHECKING:
    from airflow.sdk import Context


class EnqueueOperator(BaseOperator):
    """Enqueues one payload or many; a retry adds what an earlier try had not added, and nothing twice.

    Messages are known by the task instance and by their place in the list. So a cleared task adds nothing
    either, unless `dedupe_id` says otherwise.

    Args:
        payload: one message, a dict of JSON values.
        payloads: several, as a list or the output of an upstream task.
        stream: where to; a group that is made later begins at its start.
        topic: instead of a stream; messages go to the partitions of the topic.
        key_field: with a topic, the field of the payload that is the message's key.
        dedupe_id: another id than the task instance's; messages with the same id and place are added once.
        is_deduped: `False` adds on every try.
        dedupe_window_ms: how long an id is remembered.
        redis_streams_conn_id: a connection of type `redis_streams`.
    """

    template_fields: Sequence[str] = (
        "payload",
        "payloads",
        "stream",
        "topic",
        "dedupe_id",
        "redis_streams_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"payload": "json", "payloads": "json"}
    ui_color = "#e3ebdc"

    def __init__(
        self,
        *,
        payload: Payload | None = None,
        payloads: Iterable[Payload] | None = None,
        stream: str | None = None,
        topic: str | None = None,
        key_field: str | None = None,
        dedupe_id: str | None = None,
        is_deduped: bool = True,
        dedupe_window_ms: int = ONE_DAY_MS,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (topic is None) == (stream is None):
            raise ValueError(
                f"task {self.task_id!r} enqueues to a stream or to a topic; "
                f"got stream={stream!r}, topic={topic!r}"
            )
        self.payload = payload
        self.payloads = payloads
        self.stream = stream
        self.topic = topic
        self.key_field = key_field
        self.dedupe_id = dedupe_id
        self.is_deduped = is_deduped
        self.dedupe_window_ms = dedupe_window_ms
        self.redis_streams_conn_id = redis_streams_conn_id

    def execute(self, context: Context) -> Report:
        """Enqueue, and return how many and their range of ids."""
        with refused_at_once():
            return self.enqueue(context, self.messages(context))

    def messages(self, context: Context) -> list[Payload]:
        """The payloads, in the order in which they are enqueued."""
        if (self.payload is None) == (self.payloads is None):
            raise ValueError(
                f"task {self.task_id!r} needs payload or payloads; got payload={self.payload!r:.100}, "
                f"payloads={self.payloads!r:.100}. An upstream task may have returned None"
            )
        return [self.payload] if self.payload is not None else payload_list(self.payloads)

    def enqueue(self, context: Context, payloads: list[Payload]) -> Report:
        """Enqueue these, and tell Airflow how many and which."""
        dedupe_id, window_ms = self._dedupe_id(context), self.dedupe_window_ms
        with task_span(context), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            if self.topic is None:
                place = {"stream": str(self.stream)}
                ids = hook.enqueue(place["stream"], payloads, dedupe_id=dedupe_id, window_ms=window_ms)
            else:
                place = {"topic": self.topic}
                messages = self._of_topic(hook.topic(self.topic), payloads)
                ids = hook.send(self.topic, messages, dedupe_id=dedupe_id, window_ms=window_ms)
            report = enqueue_report(place, ids)
            tell_assets(context, self.outlets, hook.asset_uri(str(self.topic or self.stream)), report)
        return report

    def _dedupe_id(self, context: Context) -> str | None:
        if not self.is_deduped:
            return None
        return self.dedupe_id or f"airflow:{TaskTry.of_context(context).task_instance}"

    def _of_topic(self, topic: Topic, payloads: list[Payload]) -> list[Message]:
        keys = [self._key_of(payload) for payload in payloads]
        return [
            Message(
                payload=payload,
                key=key,
                # Without a key it would go anywhere, and a retry would look for it in another partition.
                partition=place % topic.partition_count if key is None else None,
            )
            for place, (payload, key) in enumerate(zip(payloads, keys, strict=True))
        ]

    def _key_of(self, payload: Payload) -> str | None:
        if self.key_field is None:
            return None
        if payload.get(self.key_field) is None:
            raise ValueError(f"a payload has no {self.key_field!r}, which is to be its key: {payload!r:.100}")
        return str(payload[self.key_field])


def payload_list(payloads: object) -> list[Payload]:
    """The payloads of a list, a generator or an upstream task's output; a single one counts as a list.

    Raises:
        TypeError: it is something else, or has something else in it.
    """
    if isinstance(payloads, Mapping):
        return [dict(payloads)]
    if isinstance(payloads, str) or not isinstance(payloads, Iterable):
        raise TypeError(
            f"payloads must be dicts, got {payloads!r:.100}. A template renders to text: "
            "use the upstream task's `.output`, or a DAG with render_template_as_native_obj=True"
        )
    found = list(payloads)
    for payload in found:
        if not isinstance(payload, dict):
            raise TypeError(f"a payload must be a dict, got {payload!r:.100}")
    return found
