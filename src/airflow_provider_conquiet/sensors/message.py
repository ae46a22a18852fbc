"""MessageSensor: waits for a message that matches, and consumes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_conquiet.arguments import failing_at_once
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.task_try import TaskTry
from conquiet import load_handler
from conquiet.payload import decode_payload
from conquiet.queue.batch_size import BatchSize
from conquiet.queue.connection import run_command
from conquiet.queue.message import data_of, pairs_of

if TYPE_CHECKING:
    from airflow.sdk import Context

Match = Callable[[dict[str, Any]], Any]

_PAGE = 500
_STATE = "conquiet_looked_at"


class MessageSensor(BaseSensorOperator):
    """Succeeds with the id of the first message that matches; reads the stream without a group.

    It sees every entry that is still in the stream, consumed or not, and each of them once per try: where
    it stopped is kept over reschedules (Airflow 3.3 and later; before, it reads from `start_id` again).

    Args:
        match: "package.module:function" of a function from payload to bool, or the function itself.
        equals: instead of `match`, payload fields and the values they must have.
        start_id: the entry id after which it reads; a time in milliseconds is one too, and "0-0" the
            beginning. Without it, the begin of the run's data interval, or of a run without one the time
            at which it was to start.
        group: begin where this consumer group stands, instead: after the last message delivered to it.

    Examples:
        >>> with DAG("after_closing", schedule="@daily", catchup=False):
        ...     closed = MessageSensor(task_id="wait", stream="tills", equals={"event": "closed"})
    """

    template_fields: Sequence[str] = ("stream", "equals", "start_id", "group", "redis_streams_conn_id")
    ui_color = "#e3ecf5"
    operator_extra_links = (DocumentationLink(),)

    def __init__(
        self,
        *,
        stream: str,
        match: str | Match | None = None,
        equals: Mapping[str, Any] | None = None,
        start_id: str | None = None,
        group: str | None = None,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (match is None) == (equals is None):
            raise ValueError(f"give either match or equals, got match={match!r} and equals={equals!r}")
        if start_id is not None and group is not None:
            raise ValueError(f"give either start_id or group, got {start_id!r} and {group!r}")
        self.stream = stream
        self.group = group
        self.match = match
        self.equals = equals
        self.start_id = start_id
        self.redis_streams_conn_id = redis_streams_conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        """Read what was added since the last poke."""
        store: Any = context.get("task_state_store")
        kept: Any = None if store is None else store.get(_STATE)
        # Another try may have another function to match with: it reads from the beginning.
        try_number = TaskTry.of_context(context).try_number
        is_of_this_try = isinstance(kept, dict) and kept.get("try") == try_number
        with RedisStreamsHook(self.redis_streams_conn_id) as hook:
            after: str = kept["after"] if is_of_this_try else self._first_after(context, hook)
            with failing_at_once():
                match = load_handler(self.match) if isinstance(self.match, str) else self.match
                client = hook.get_conn()
            sizes = BatchSize(_PAGE)
            place: Any = {"stream": self.stream, "group": None}
            while page := run_command(
                client, "XRANGE", self.stream, f"({after}", "+", "COUNT", sizes.next, **place
            ):
                sizes.learn_bytes([sum(len(value) for _, value in pairs_of(fields)) for _, fields in page])
                sizes.took(0.0)
                for raw_id, fields in page:
                    after = raw_id.decode()
                    try:
                        payload = decode_payload(data_of(fields))
                    except ValueError:
                        # A malformed entry cannot match; the drain of the stream reports it.
                        continue
                    if match(payload) if match else {**payload, **(self.equals or {})} == payload:
                        if store is not None:
                            store.delete(_STATE)
                        return PokeReturnValue(True, {"stream": self.stream, "id": after})
        if store is not None:
            store.set(_STATE, {"try": try_number, "after": after})
        return PokeReturnValue(False)

    def _first_after(self, context: Context, hook: RedisStreamsHook) -> str:
        if self.start_id is not None:
            return self.start_id
        if self.group is not None:
            return hook.backlog(self.stream, self.group).last_delivered_id
        begin = context.get("data_interval_start") or getattr(context.get("dag_run"), "run_after", None)
        # Without its sequence number an id is the first of its millisecond, and that one is wanted too.
        return "0-0" if begin is None else f"{int(begin.timestamp() * 1000) - 1}-{2**64 - 1}"
