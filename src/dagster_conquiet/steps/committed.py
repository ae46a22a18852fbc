"""How far a group has committed, and for how long newer messages have waited: read from Redis alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from conquiet.mq import Topics
from conquiet.queue import Client
from conquiet.queue.backlog import as_mapping
from conquiet.queue.batch_size import BATCH_BYTES
from conquiet.queue.connection import AS_BYTES, as_text, visible_errors
from conquiet.queue.pages import EntryPages
from conquiet.queue.steps import run_steps
from dagster_conquiet.specs import AnySpec, TopicDrainSpec

#: So many of the messages that were delivered last are looked at; if all are pending, none was committed.
_MOST_PENDING = 1_000
#: And of so many bytes, which the server reads for it.
_MOST_BYTES = 8 * BATCH_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The newest message that the group has finished, and the first one behind it."""

    #: `None` if the group has finished none of those that the stream still has.
    newest_id: str | None
    #: For how long the first message behind it has been in the stream; 0 if there is none.
    behind_ms: int

    @property
    def newest_ms(self) -> int | None:
        return None if self.newest_id is None else int(self.newest_id.partition("-")[0])


def committed_of(client: Client, spec: AnySpec) -> Committed:
    """Of the stream; of a topic, the partition that is behind the most."""
    if isinstance(spec, TopicDrainSpec):
        topic = Topics(client).open(spec.topic)
        streams = [topic.keys.stream(partition) for partition in topic.partitions]
    else:
        streams = [spec.stream]
    parts = [_committed(client, stream, spec.group) for stream in streams]
    return max(parts, key=lambda part: part.behind_ms)


def _committed(client: Client, stream: str, group: str) -> Committed:
    call = partial(client.execute_command, **AS_BYTES)
    with visible_errors("peek", stream=stream, group=group):
        newest = _newest_finished(call, stream, group)
        after = "-" if newest is None else f"({newest}"
        # One that waits behind the newest finished message; a failed one before it makes the group no staler.
        first: Any = call("XRANGE", stream, after, "+", "COUNT", 1)
        seconds, microseconds = call("TIME")
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    behind_ms = max(0, now_ms - int(as_text(first[0][0]).partition("-")[0])) if first else 0
    return Committed(newest_id=newest, behind_ms=behind_ms)


def _newest_finished(call: Any, stream: str, group: str) -> str | None:
    groups = map(as_mapping, call("XINFO GROUPS", stream)) if call("EXISTS", stream) else ()
    info = next((row for row in groups if as_text(row["name"]) == group), None)
    if info is None:
        return None
    last = as_text(info["last-delivered-id"])
    if last == "0-0":
        return None
    if not call("XPENDING", stream, group, last, last, 1, parse_detail=True):
        return last
    pages, read, bytes_read = EntryPages(stream, last=last, newest_first=True), 0, 0
    while not pages.is_end and read < _MOST_PENDING and bytes_read < _MOST_BYTES:
        ids, size = run_steps(call, pages.next_ids(_MOST_PENDING - read))
        read, bytes_read = read + len(ids), bytes_read + size
        if ids:
            rows = call("XPENDING", stream, group, ids[-1], ids[0], _MOST_PENDING, parse_detail=True)
            pending = {as_text(row["message_id"]) for row in rows}
            if finished := next((name for name in ids if name not in pending), None):
                return finished
    return None
