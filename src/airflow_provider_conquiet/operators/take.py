"""TakeOperator: messages for one DAG run, which are acked when the run has succeeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.airflow_names import AirflowSkipException
from airflow_provider_conquiet.arguments import failing_at_once, number, optional_number, truth
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.lineage import Lineage
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.reports import Report, update_outlets
from airflow_provider_conquiet.run_messages import MAX_BYTES, MOST_MESSAGES, RunMessages
from airflow_provider_conquiet.task_try import TaskTry
from conquiet import QueueMessage
from conquiet.queue.config import CLAIM_IDLE_MS

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


class TakeOperator(BaseOperator):
    """Takes messages for the run, first what failed runs handed back; an `AckByRunSensor` settles them.

    A retry, and a task that is cleared, takes the same messages again for as long as they are the run's. It
    returns their ids; `messages_of` reads the messages.

    Args:
        stream: the key of the stream.
        group: a group that only runs of this DAG read.
        max_messages: how many at most, up to 1,000.
        max_bytes: no more are taken after so many bytes of payloads, of which `messages_of` makes one list.
        max_deliveries: a message that more runs have failed with becomes a dead letter; `None` for never.
        claim_idle_ms: after which other runs take over what was not renewed, as when the triggerer is gone.
        skip_on_empty: skip the task, and what depends on it, if there is no message.
        redis_streams_conn_id: a connection of type `redis_streams`, `redis` or `rediss`.

    Examples:
        >>> with DAG("ship_parcels", schedule="* * * * *", catchup=False):
        ...     taken = TakeOperator(task_id="take", stream="parcels", group="shipping", max_deliveries=5)
    """

    template_fields: Sequence[str] = (
        "stream",
        "group",
        "max_messages",
        "max_bytes",
        "max_deliveries",
        "claim_idle_ms",
        "skip_on_empty",
        "redis_streams_conn_id",
    )
    ui_color = "#dcebe3"
    operator_extra_links = (DocumentationLink(),)

    #: What the task did, for OpenLineage.
    lineage: Lineage | None = None

    def __init__(
        self,
        *,
        stream: str,
        group: str,
        max_messages: int | str = 100,
        max_bytes: int | str = MAX_BYTES,
        max_deliveries: int | str | None = None,
        claim_idle_ms: int | str = CLAIM_IDLE_MS,
        skip_on_empty: bool | str = True,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.group = group
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.max_deliveries = max_deliveries
        self.claim_idle_ms = claim_idle_ms
        self.skip_on_empty = skip_on_empty
        self.redis_streams_conn_id = redis_streams_conn_id

    def get_openlineage_facets_on_complete(self, _task_instance: object) -> OperatorLineage[Any, Any] | None:
        """Inputs and counts, for Airflow's OpenLineage provider."""
        return None if self.lineage is None else self.lineage.facets()

    def execute(self, context: Context) -> Report:
        """Take, and return how many, their ids and where they are."""
        with failing_at_once():
            most = number("max_messages", self.max_messages, int)
            if not 1 <= most <= MOST_MESSAGES:
                raise ValueError(f"max_messages is between 1 and {MOST_MESSAGES}, got {most}")
            max_bytes = number("max_bytes", self.max_bytes, int)
            if max_bytes < 1:
                raise ValueError(f"max_bytes is at least 1, got {max_bytes}")
            messages = RunMessages.of_try(
                TaskTry.of_context(context),
                redis_streams_conn_id=self.redis_streams_conn_id,
                stream=self.stream,
                group=self.group,
                claim_idle_ms=number("claim_idle_ms", self.claim_idle_ms, int),
            )
            is_skipped = truth("skip_on_empty", self.skip_on_empty)
            max_deliveries = optional_number("max_deliveries", self.max_deliveries, int)
            ids, counts = messages.take(most, max_deliveries, max_bytes)
        if not ids and is_skipped:
            raise AirflowSkipException(f"no message in {self.stream!r} for group {self.group!r}")
        self.log.info("%s messages taken for this run as consumer %r", len(ids), messages.consumer)
        report = messages.report(ids, counts)
        uri = RedisStreamsHook(self.redis_streams_conn_id).asset_uri(self.stream)
        last = {"last_id": ids[-1] if ids else None}
        update_outlets(context, self.outlets, uri, report | last)
        self.lineage = Lineage(inputs={uri: len(ids)})
        return report


def messages_of(taken: Mapping[str, Any]) -> list[QueueMessage]:
    """The messages that the run has taken, from what its `TakeOperator` returned.

    Raises:
        RunMessagesGoneError: they are not the run's any more.

    Examples:
        >>> def ship(taken):  # a task that is called with the output of the TakeOperator
        ...     return [msg.payload for msg in messages_of(taken)]
    """
    return RunMessages.of_report(taken).messages(taken["ids"])
