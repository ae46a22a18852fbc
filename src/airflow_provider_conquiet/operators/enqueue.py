"""EnqueueOperator: messages into a stream or a topic, once per task instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.arguments import failing_at_once, number, stream_or_topic, truth
from airflow_provider_conquiet.dedupe_names import DedupeKey, dedupe_names
from airflow_provider_conquiet.hooks.redis_streams import ONE_DAY_MS, RedisStreamsHook
from airflow_provider_conquiet.lineage import Lineage
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.reports import Report, enqueue_report, update_outlets
from airflow_provider_conquiet.task_try import TaskTry, task_span
from conquiet.mq import Message
from conquiet.payload import Payload, Sendable, as_json_object, as_json_objects, is_sendable
from conquiet.queue.scripts import Added

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


class EnqueueOperator(BaseOperator):
    """Enqueues one payload or many; a retry adds what an earlier try had not added, and nothing twice.

    Messages are known by the task instance and by their content, in whatever order they come. So a cleared
    task adds nothing either that it has added, unless `dedupe_id` is another one.

    Args:
        payload: one message, a dict of JSON values, a dataclass or a model; what has templates is a dict.
        payloads: several, as a list or the output of an upstream task.
        stream: where to; a group that is created later begins at its start.
        topic: instead of a stream; messages go to the partitions of the topic.
        key_field: with a topic, the field of the payload that is the message's key.
        dedupe_id: another id than the task instance's; equal messages with the same id are added once.
        dedupe_key: what makes two messages the same one: a field of the payload, or a function of it. Without
            it, all of the content; two equal payloads of one list are two messages then.
        is_deduped: `False` adds on every try.
        dedupe_window_ms: how long an id is remembered.
        redis_streams_conn_id: a connection of type `redis_streams`.

    Examples:
        >>> with DAG("close_the_day", schedule="@daily", catchup=False):
        ...     closing = EnqueueOperator(task_id="close", stream="ledger", payload={"day": "{{ ds }}"})
    """

    template_fields: Sequence[str] = (
        "payload",
        "payloads",
        "stream",
        "topic",
        "key_field",
        "dedupe_id",
        "is_deduped",
        "dedupe_window_ms",
        "redis_streams_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"payload": "json", "payloads": "json"}
    ui_color = "#e3ebdc"
    operator_extra_links = (DocumentationLink(),)

    #: What the task did, for OpenLineage.
    lineage: Lineage | None = None

    def __init__(
        self,
        *,
        payload: Sendable | None = None,
        payloads: Iterable[Sendable] | None = None,
        stream: str | None = None,
        topic: str | None = None,
        key_field: str | None = None,
        dedupe_id: str | None = None,
        dedupe_key: DedupeKey | None = None,
        is_deduped: bool | str = True,
        dedupe_window_ms: int | str = ONE_DAY_MS,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        stream_or_topic(stream, topic)
        self.payload = payload
        self.payloads = payloads
        self.stream = stream
        self.topic = topic
        self.key_field = key_field
        self.dedupe_id = dedupe_id
        self.dedupe_key = dedupe_key
        self.is_deduped = is_deduped
        self.dedupe_window_ms = dedupe_window_ms
        self.redis_streams_conn_id = redis_streams_conn_id

    def get_openlineage_facets_on_complete(self, _task_instance: object) -> OperatorLineage[Any, Any] | None:
        """Outputs and counts, for Airflow's OpenLineage provider."""
        return None if self.lineage is None else self.lineage.facets()

    def execute(self, context: Context) -> Report:
        """Enqueue, and return how many and their range of ids."""
        with failing_at_once():
            if (self.payload is None) == (self.payloads is None):
                raise ValueError(
                    f"task {self.task_id!r} needs payload or payloads; got payload={self.payload!r:.100}, "
                    f"payloads={self.payloads!r:.100}. An upstream task may have returned None"
                )
            payloads = self.payloads if self.payload is None else [self.payload]
            return self.enqueue(context, payload_list(payloads))

    def enqueue(self, context: Context, payloads: list[Payload]) -> Report:
        """Enqueue these, and report how many and which."""
        kind, name = stream_or_topic(self.stream, self.topic)
        is_deduped = truth("is_deduped", self.is_deduped)
        window_ms = number("dedupe_window_ms", self.dedupe_window_ms, int)
        dedupe_id = (self.dedupe_id or TaskTry.of_context(context).dedupe_id) if is_deduped else None
        names = [] if dedupe_id is None else dedupe_names(payloads, self.dedupe_key)
        with task_span(context), RedisStreamsHook(self.redis_streams_conn_id) as hook:
            if kind == "topic":
                messages = self._messages(payloads, names, dedupe_id, hook.topic(name).partition_count)
                added = hook.send_each(name, messages, window_ms=window_ms)
            elif dedupe_id is None:
                added = [Added(entry_id, is_new=True) for entry_id in hook.enqueue(name, payloads)]
            else:
                options: dict[str, Any] = {"dedupe_id": dedupe_id, "window_ms": window_ms}
                added = hook.enqueue_named(name, payloads, names, **options)
            report = enqueue_report({kind: name}, added)
            self.log.info("%(added)s messages added, %(already_there)s were already there", report)
            update_outlets(context, self.outlets, hook.asset_uri(name), report)
            self.lineage = Lineage(outputs={hook.asset_uri(name): report["added"]})
        return report

    def _messages(
        self, payloads: list[Payload], names: list[str], dedupe_id: str | None, partition_count: int
    ) -> list[Message]:
        messages = []
        for index, payload in enumerate(payloads):
            key = None if self.key_field is None else payload.get(self.key_field)
            if self.key_field is not None and key is None:
                raise ValueError(
                    f"a payload has no {self.key_field!r}, which is to be its key: {payload!r:.100}"
                )
            partition = None
            if key is None:
                # Any partition may get it; a retry must find it there.
                partition = (crc32(names[index].encode()) if names else index) % partition_count
            messages.append(
                Message(
                    payload=payload,
                    key=None if key is None else str(key),
                    partition=partition,
                    dedupe_id=None if dedupe_id is None else f"{dedupe_id}:{names[index]}",
                )
            )
        return messages


def payload_list(payloads: object) -> list[Payload]:
    """The payloads of a list, a generator or an upstream task's output; a single one counts as a list.

    Raises:
        TypeError: it is something else, or has something else in it.
    """
    if is_sendable(payloads):
        return [as_json_object(payloads, None)]
    if isinstance(payloads, str) or not isinstance(payloads, Iterable):
        raise TypeError(
            f"payloads must be dicts, got {payloads!r:.100}. A template renders to text: "
            "use the upstream task's `.output`, or a DAG with render_template_as_native_obj=True"
        )
    listed = list(payloads)
    for payload in listed:
        if not is_sendable(payload):
            raise TypeError(f"a payload must be a dict, a dataclass or a model, got {payload!r:.100}")
    return as_json_objects(listed, None)
