"""MessageSensor: waits for a message that matches, and consumes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_conquiet.airflow_names import conf
from airflow_provider_conquiet.arguments import failing_at_once, stream_or_topic
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.message_search import Match, MessageSearch
from airflow_provider_conquiet.task_try import TaskTry
from airflow_provider_conquiet.triggers.match import MatchTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

_STATE = "conquiet_looked_at"


class MessageSensor(BaseSensorOperator):
    """Succeeds with the id of the first message that matches; reads the stream without a group.

    It sees every entry that is still in the stream, consumed or not, and each of them once per try: where
    it stopped is kept between pokes, and over reschedules from Airflow 3.3 on; before, a rescheduled one
    reads from its start again.

    Args:
        stream, topic: one of the two; of a topic all partitions are read, and the payload is matched.
        match: "package.module:function" of a function from payload to bool, or the function itself.
        equals: instead of `match`, payload fields and the values they must have.
        start_id: the entry id after which it reads; a time in milliseconds is one too, and "0-0" the
            beginning. Without it, the begin of the run's data interval, or of a run without one the time
            at which it was to start.
        group: begin where this consumer group stands, instead: after the last message delivered to it. Before
            Airflow 3.3 not with `mode="reschedule"`, which would begin there again each time.
        deferrable: search from the triggerer, every `poke_interval`, without a worker slot; `match` is an
            import string then.

    Examples:
        >>> with DAG("after_closing", schedule="@daily", catchup=False):
        ...     closed = MessageSensor(task_id="wait", stream="tills", equals={"event": "closed"})
    """

    template_fields: Sequence[str] = (
        "stream",
        "topic",
        "match",
        "equals",
        "start_id",
        "group",
        "redis_streams_conn_id",
    )
    ui_color = "#e3ecf5"
    operator_extra_links = (DocumentationLink(),)

    #: Where the last poke stopped, and of which try: for Airflow without a store of a task's state.
    _last_poke: Mapping[str, Any] | None = None

    def __init__(
        self,
        *,
        stream: str | None = None,
        topic: str | None = None,
        match: str | Match | None = None,
        equals: Mapping[str, Any] | None = None,
        start_id: str | None = None,
        group: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        stream_or_topic(stream, topic)
        if (match is None) == (equals is None):
            raise ValueError(f"give either match or equals, got match={match!r} and equals={equals!r}")
        if start_id is not None and group is not None:
            raise ValueError(f"give either start_id or group, got {start_id!r} and {group!r}")
        if deferrable and callable(match):
            raise ValueError(f"with deferrable, match is an import string, got the function {match!r}")
        self.stream = stream
        self.topic = topic
        self.group = group
        # Airflow calls a function that it finds in a template field, with the context.
        self.match = None if callable(match) else match
        self._function = match if callable(match) else None
        self.equals = equals
        self.start_id = start_id
        self.deferrable = deferrable
        self.redis_streams_conn_id = redis_streams_conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        """Read what was added since the last poke."""
        search, found = self._search(context)
        store: Any = context.get("task_state_store")
        if found is not None:
            self._last_poke = None
            if store is not None:
                store.delete(_STATE)
            return PokeReturnValue(True, self._report(*found))
        self._last_poke = {"try": TaskTry.of_context(context).try_number, "after": search.after}
        if store is not None:
            store.set(_STATE, self._last_poke)
        return PokeReturnValue(False)

    def execute(self, context: Context) -> Any:
        """Poke until a message matches; with `deferrable`, once here and then from the triggerer."""
        if not self.deferrable:
            with failing_at_once():
                self._check_place_is_kept(context)
            return super().execute(context)
        search, found = self._search(context)
        if found is not None:
            return self._report(*found)
        trigger = MatchTrigger(
            after=search.after,
            is_topic=search.is_topic,
            match=self.match,
            equals=self.equals,
            redis_streams_conn_id=self.redis_streams_conn_id,
            poll_interval_s=self.poke_interval or 1.0,
        )
        timeout = timedelta(seconds=self.timeout)
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def execute_complete(self, context: Context, event: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Return what the trigger has found."""
        return self._report(event["stream"], event["id"])

    def _report(self, stream: str, entry_id: str) -> dict[str, Any]:
        kind, name = stream_or_topic(self.stream, self.topic)
        return {kind: name, "id": entry_id} | ({"partition_stream": stream} if kind == "topic" else {})

    def _search(self, context: Context) -> tuple[MessageSearch, tuple[str, str] | None]:
        """Search what was not read before, by this try of the task."""
        store: Any = context.get("task_state_store")
        kept: Any = self._last_poke if store is None else store.get(_STATE)
        # Another try may have another function to match with: it reads from the beginning.
        is_of_this_try = isinstance(kept, dict) and kept.get("try") == TaskTry.of_context(context).try_number
        with RedisStreamsHook(self.redis_streams_conn_id) as hook:
            with failing_at_once():
                client = hook.get_conn()
                kind, name = stream_or_topic(self.stream, self.topic)
                streams = [name]
                if kind == "topic":
                    topic = hook.topic(name)
                    streams = [topic.keys.stream(partition) for partition in topic.partitions]
            after = dict(kept["after"]) if is_of_this_try else {}
            for stream in streams:
                after.setdefault(stream, self._first_after(context, hook, stream))
            search = MessageSearch(after, kind == "topic", self.match or self._function, self.equals)
            with failing_at_once():
                search.load()
            return search, search.find(client)

    def _check_place_is_kept(self, context: Context) -> None:
        # The group's place would be read anew each time: after what it has read since, matches among it.
        if self.group is not None and self.reschedule and context.get("task_state_store") is None:
            raise ValueError(
                f"task {self.task_id!r} has group={self.group!r} and mode='reschedule': before Airflow 3.3 "
                "that misses what the group reads between two pokes; give deferrable=True, or a start_id"
            )

    def _first_after(self, context: Context, hook: RedisStreamsHook, stream: str) -> str:
        if self.start_id is not None:
            return self.start_id
        if self.group is not None:
            return hook.backlog(stream, self.group).last_delivered_id
        begin = context.get("data_interval_start") or getattr(context.get("dag_run"), "run_after", None)
        # Without its sequence number an id is the first of its millisecond, and that one is wanted too.
        return "0-0" if begin is None else f"{int(begin.timestamp() * 1000) - 1}-{2**64 - 1}"
