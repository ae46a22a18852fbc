"""HandlingOperator: what tasks that handle messages have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from sqlalchemy import Engine

from airflow_provider_conquiet.drains import DrainSettings, OnError
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.refusals import refused_at_once, seconds, whole_number
from airflow_provider_conquiet.traces import task_span
from conquiet import Inbox, load_handler

if TYPE_CHECKING:
    from airflow.sdk import Context

Handler = Callable[..., Any]


class HandlingOperator(BaseOperator):
    """Handles each message in its own transaction and acks it after the commit.

    Args:
        group: the consumer group; it is made at the stream's start if it is not there.
        handler: "package.module:function", or a function; called as handler(msg, session).
        stream: the key of the stream.
        max_messages: the most that one task handles.
        max_duration_s: no message is begun after this time; keep it below `execution_timeout`.
        on_error: "continue" leaves a failed message pending and goes on; "raise" stops at the first one and
            fails the task with its error.
        max_failures: with "continue", how many failed messages fail the task, at once and without retries;
            `None` for any number.
        max_deliveries: a message delivered more often than this is quarantined instead of handled.
        quarantine_to: another stream than `{stream}:quarantine`.
        inbox: skip messages that were handled before; `True`, or the name of the inbox table.
        batch_size: the most that one read asks for.
        redis_streams_conn_id: a connection of type `redis_streams` with a `db_url`.
    """

    ui_color = "#dcebe3"

    #: Set from a signal handler, so a plain attribute.
    _is_told_to_stop = False

    def __init__(
        self,
        *,
        group: str,
        handler: str | Handler,
        stream: str | None = None,
        max_messages: int = 1_000,
        max_duration_s: float | None = None,
        on_error: OnError = "continue",
        max_failures: int | None = 10,
        max_deliveries: int | None = None,
        quarantine_to: str | None = None,
        inbox: bool | str = False,
        batch_size: int = 100,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group = group
        self.handler = handler
        self.stream = stream
        self.max_messages = max_messages
        self.max_duration_s = max_duration_s
        self.on_error = on_error
        self.max_failures = max_failures
        self.max_deliveries = max_deliveries
        self.quarantine_to = quarantine_to
        self.inbox = inbox
        self.batch_size = batch_size
        self.redis_streams_conn_id = redis_streams_conn_id

    def on_kill(self) -> None:
        """Let the message at hand finish, and begin no other."""
        self._is_told_to_stop = True

    def is_told_to_stop(self) -> bool:
        """Asked between messages."""
        return self._is_told_to_stop

    def loaded_handler(self, context: Context) -> Handler:
        """The function that handles messages; imported when the task runs."""
        return load_handler(self.handler) if isinstance(self.handler, str) else self.handler

    def settings(self) -> DrainSettings:
        """The arguments as they are after templates were rendered."""
        duration = self.max_duration_s
        return DrainSettings(
            max_messages=whole_number("max_messages", self.max_messages),
            max_duration_s=None if duration is None else seconds("max_duration_s", duration),
            on_error=self.on_error,
            max_failures=_optional_number("max_failures", self.max_failures),
            max_deliveries=_optional_number("max_deliveries", self.max_deliveries),
            quarantine_to=self.quarantine_to,
            inbox=_inbox(self.inbox),
            batch_size=self.batch_size,
        )

    @contextmanager
    def opened(self, context: Context) -> Iterator[tuple[RedisStreamsHook, Engine]]:
        """Redis and the application's database for the length of the block, inside of the task's span."""
        with ExitStack() as stack:
            stack.enter_context(task_span(context))
            with refused_at_once():
                hook = stack.enter_context(RedisStreamsHook(self.redis_streams_conn_id))
                engine = stack.enter_context(hook.engine())
            yield hook, engine


def _optional_number(name: str, value: object) -> int | None:
    return None if value is None else whole_number(name, value)


def _inbox(inbox: bool | str) -> Inbox | None:
    if isinstance(inbox, str):
        return Inbox(table=inbox)
    return Inbox() if inbox else None
