"""MessageSensor: waits for a message that matches, and consumes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_conquiet.attempts import TaskTry
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.refusals import refused_at_once
from conquiet import QueueError, load_handler
from conquiet.queue import Client

if TYPE_CHECKING:
    from airflow.sdk import Context

Match = Callable[[dict[str, Any]], Any]

_PAGE = 500
_STATE = "conquiet_looked_at"


class MessageSensor(BaseSensorOperator):
    """Succeeds with the id of the first message that matches; looks at the stream without a group.

    It sees every entry that is still in the stream, whoever consumed it, and each of them once per try: where
    it stopped is kept over reschedules (Airflow 3.3 and later; before, it looks from `start_id` again).

    Args:
        match: "package.module:function" of a function from payload to bool, or the function itself.
        equals: instead of `match`, payload fields and the values they must have.
        start_id: the entry id to look after; a time in milliseconds is one too.
    """

    template_fields: Sequence[str] = ("stream", "equals", "start_id", "redis_streams_conn_id")
    ui_color = "#e3ecf5"

    def __init__(
        self,
        *,
        stream: str,
        match: str | Match | None = None,
        equals: Mapping[str, Any] | None = None,
        start_id: str = "0-0",
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (match is None) == (equals is None):
            raise ValueError(f"give either match or equals, got match={match!r} and equals={equals!r}")
        self.stream = stream
        self.match = match
        self.equals = equals
        self.start_id = start_id
        self.redis_streams_conn_id = redis_streams_conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at what has come since the last look."""
        memory = _Memory(context, self.start_id)
        with RedisStreamsHook(self.redis_streams_conn_id) as hook:
            with refused_at_once():
                matches, client = self._matcher(), hook.get_conn()
            for entry_id, payload in _entries(client, self.stream, memory):
                if payload is not None and matches(payload):
                    memory.forget()
                    return PokeReturnValue(True, {"stream": self.stream, "id": entry_id})
        memory.keep()
        return PokeReturnValue(False)

    def _matcher(self) -> Match:
        if callable(self.match):
            return self.match
        if self.match is not None:
            return load_handler(self.match)
        wanted = dict(self.equals or {})
        return lambda payload: all(
            name in payload and payload[name] == value for name, value in wanted.items()
        )


class _Memory:
    """Where this try of the task has looked up to."""

    def __init__(self, context: Context, start_id: str) -> None:
        self._try = TaskTry.of_context(context).try_number
        self._store: Any = context.get("task_state_store")
        kept: Any = self._store.get(_STATE) if self._store is not None else None
        # Another try may have another function to match with: it looks from the beginning.
        is_of_this_try = isinstance(kept, dict) and kept.get("try") == self._try
        self.after: str = kept["after"] if is_of_this_try else start_id

    def keep(self) -> None:
        if self._store is not None:
            self._store.set(_STATE, {"try": self._try, "after": self.after})

    def forget(self) -> None:
        if self._store is not None:
            self._store.delete(_STATE)


def _entries(client: Client, stream: str, memory: _Memory) -> Iterator[tuple[str, dict[str, Any] | None]]:
    while page := _page(client, stream, memory.after):
        for raw_id, fields in page:
            memory.after = raw_id.decode()
            yield memory.after, _payload(fields)


def _page(client: Client, stream: str, after: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    from redis.exceptions import RedisClusterException, RedisError

    try:
        return client.xrange(stream, min=f"({after}", count=_PAGE)  # type: ignore[return-value]
    except (RedisError, RedisClusterException) as error:
        reason = f"{type(error).__name__}: {error}"
        raise QueueError("XRANGE", stream=stream, group=None, reason=reason) from error


def _payload(fields: Mapping[bytes, bytes]) -> dict[str, Any] | None:
    # What is no message cannot match; whoever drains the stream will meet it and say so.
    try:
        payload = json.loads(fields.get(b"data", b""))
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None
