"""HandlingOperator: what tasks that handle messages have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseOperator
from sqlalchemy import Engine

from airflow_provider_conquiet.arguments import failing_at_once, number, optional_number, truth
from airflow_provider_conquiet.drains import TaskDrain, handled_before
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.lineage import Lineage
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.reports import Report, drain_report, update_outlets
from airflow_provider_conquiet.task_try import TaskTry, task_span
from conquiet import DrainLimits, Inbox, batch_handler, load_handler
from conquiet.consume import Handler
from conquiet.consume.batch_handler import BatchHandler
from conquiet.consume.limits import OrderBy

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

_DEFAULTS = DrainLimits()


class HandlingOperator(BaseOperator):
    """Handles each message in its own transaction and acks it after the commit.

    Args:
        group: the consumer group; it is created at the stream's start if it does not exist.
        handler: "package.module:function", or a function; called as handler(msg, session).
        stream: the key of the stream.
        payload: the type of `msg.payload`, as a dataclass or a model, or "package.module:Class"; a dict
            unless given. A message that does not fit it fails.
        batch: the handler takes a list of messages, up to `batch_size`, in one transaction; unneeded for one
            that `batch_handler` marks.
        concurrency: how many messages, or batches, are handled at once, each with a connection of its own.
        order_by: with more than one: the field, or a function of the message, whose equal values keep their
            order; `False` for no order. A topic keeps that of its keys by itself.
        max_messages, max_duration_s, idle_ms, max_deliveries, take_over_dead, batch_size: as in
            `DrainLimits`, which has the defaults; keep `max_duration_s` below `execution_timeout`.
        on_error: "continue" goes on after a failed message; "raise" stops at the first one and fails the task
            with its error.
        max_failures: how many failed messages fail the task, at once and without retries; `None` for any
            number.
        inbox: skip messages that were handled before; `True`, or the name of the inbox table.
        progress_every_s: how often the log shows count, rate, backlog, failures and waits for locks of the
            database; `None` for begin and report alone.
        redis_streams_conn_id: a connection of type `redis_streams`, `redis` or `rediss`.
        db_conn_id: the connection of the application's database, instead of the one that it names.
    """

    # Without order_by: Airflow calls a function that it finds in one of them, with the context.
    template_fields: Sequence[str] = (
        "stream",
        "group",
        "handler",
        "inbox",
        "max_messages",
        "max_duration_s",
        "idle_ms",
        "on_error",
        "max_failures",
        "max_deliveries",
        "take_over_dead",
        "concurrency",
        "batch_size",
        "progress_every_s",
        "redis_streams_conn_id",
        "db_conn_id",
    )
    ui_color = "#dcebe3"

    operator_extra_links = (DocumentationLink(),)

    #: What the task did, for OpenLineage.
    lineage: Lineage | None = None
    #: Set from a signal handler, so a plain attribute.
    _is_stopping = False

    def __init__(
        self,
        *,
        group: str,
        handler: str | Handler,
        stream: str | None = None,
        max_messages: int | None = _DEFAULTS.max_messages,
        max_duration_s: float | None = _DEFAULTS.max_duration_s,
        idle_ms: int | None = _DEFAULTS.idle_ms,
        on_error: Literal["raise", "continue"] = _DEFAULTS.on_error,
        max_failures: int | None = _DEFAULTS.max_failures,
        max_deliveries: int | None = _DEFAULTS.max_deliveries,
        take_over_dead: bool = _DEFAULTS.take_over_dead,
        batch: bool = False,
        batch_size: int = _DEFAULTS.batch_size,
        concurrency: int = _DEFAULTS.concurrency,
        order_by: OrderBy | None = _DEFAULTS.order_by,
        inbox: bool | str = False,
        payload: Any = None,
        progress_every_s: float | None = 5.0,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        db_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group = group
        # Airflow calls a function that it finds in a template field.
        self.handler = None if callable(handler) else handler
        self._function = handler if callable(handler) else None
        self.stream = stream
        self.max_messages = max_messages
        self.max_duration_s = max_duration_s
        self.idle_ms = idle_ms
        self.on_error = on_error
        self.max_failures = max_failures
        self.max_deliveries = max_deliveries
        self.take_over_dead = take_over_dead
        self.batch = batch
        self.batch_size = batch_size
        self.concurrency = concurrency
        self.order_by = order_by
        self.inbox = inbox
        self.payload = payload
        self.progress_every_s = progress_every_s
        self.redis_streams_conn_id = redis_streams_conn_id
        self.db_conn_id = db_conn_id

    def get_openlineage_facets_on_complete(self, _task_instance: object) -> OperatorLineage[Any, Any] | None:
        """Inputs and counts, for Airflow's OpenLineage provider; of a task that has failed too."""
        return None if self.lineage is None else self.lineage.facets()

    @property
    def outlet_partition(self) -> str | None:
        """Of which partition of its outlets this task's events are; none, unless a task has them."""
        return None

    def on_kill(self) -> None:
        """Finish the message in the handler, and begin no other."""
        self._is_stopping = True

    def loaded_handler(self, context: Context) -> Handler:
        """The function that handles messages; imported when the task runs."""
        return self.marked(load_handler(str(self.handler)) if self._function is None else self._function)

    def marked(self, handler: Handler) -> Handler:
        """The handler, as one of batches if `batch` says so."""
        is_marked = isinstance(handler, BatchHandler)
        return batch_handler(handler) if self.batch and not is_marked else handler

    @abstractmethod
    def task_drain(self, hook: RedisStreamsHook, task_try: TaskTry) -> TaskDrain:
        """What this task drains, from its arguments as they are after templates were rendered."""

    def drain_arguments(self, hook: RedisStreamsHook, task_try: TaskTry) -> dict[str, Any]:
        """The arguments of every `TaskDrain` but for the stream."""
        limits = DrainLimits(
            max_messages=optional_number("max_messages", self.max_messages, int),
            max_duration_s=optional_number("max_duration_s", self.max_duration_s, float),
            idle_ms=optional_number("idle_ms", self.idle_ms, int),
            max_failures=optional_number("max_failures", self.max_failures, int),
            max_deliveries=optional_number("max_deliveries", self.max_deliveries, int),
            take_over_dead=truth("take_over_dead", self.take_over_dead),
            on_error=self.on_error,
            batch_size=number("batch_size", self.batch_size, int),
            concurrency=number("concurrency", self.concurrency, int),
            order_by=self.order_by,
            should_stop=lambda: self._is_stopping,
        )
        return {
            "hook": hook,
            "group": self.group,
            "limits": limits,
            "inbox": _inbox_of(self.inbox),
            "payload": self.payload,
            "task_try": task_try,
            "progress_every_s": optional_number("progress_every_s", self.progress_every_s, float),
        }

    @contextmanager
    def opened(self, context: Context) -> Iterator[tuple[RedisStreamsHook, Engine]]:
        """Redis and the application's database for the length of the block, inside the task's span."""
        with ExitStack() as stack:
            stack.enter_context(task_span(context))
            with failing_at_once():
                opened = RedisStreamsHook(self.redis_streams_conn_id, db_conn_id=self.db_conn_id)
                hook = stack.enter_context(opened)
                connections = number("concurrency", self.concurrency, int)
                engine = stack.enter_context(hook.engine(connections=connections))
            yield hook, engine

    def drain_once(self, context: Context) -> Report:
        """Drain, and report it to XCom, to the outlets and to Airflow's lineage."""
        task_try = TaskTry.of_context(context)
        with self.opened(context) as (hook, engine):
            with failing_at_once():
                handler = self.loaded_handler(context)
                drain = self.task_drain(hook, task_try)
            hook.record_input(drain.source)
            uri = hook.asset_uri(drain.source)
            try:
                done = drain.run(handler, engine)
            except Exception as error:
                # What was committed before is done.
                self.lineage = Lineage(inputs={uri: handled_before(error)})
                raise
            self.lineage = Lineage(inputs={uri: done.handled})
            report = drain_report(done, consumer=task_try.consumer_name, backlog=drain.backlog())
            update_outlets(context, self.outlets, uri, report, partition=self.outlet_partition)
        return report


def _inbox_of(value: bool | str) -> Inbox | None:
    """The inbox that was asked for: by true or false, which a template makes text of, or by its table."""
    try:
        return Inbox() if truth("inbox", value) else None
    except ValueError:
        return Inbox(table=str(value))
