"""UnneededPayloads: content in the payload store that no task, result or dead letter refers to any more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from conquiet.queue.connection import Client, as_text, run_command
from conquiet.queue.message import pairs_of
from conquiet.tasks import clock
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.payloads import reference_in
from conquiet.tasks.schedules.store import ScheduleStore, TaskDelivery

_PAGE = 100
_KEY = re.compile(rb"[0-9a-f]{32}")

#: States in which nothing needs the arguments of a task.
_DONE = frozenset(("succeeded", "revoked", "expired"))


class UnneededPayloads:
    """Finds, by the index of one queue, what can be deleted; never reads the whole server."""

    def __init__(self, client: Client, keys: QueueKeys, schedules: ScheduleStore) -> None:
        self._client = client
        self._keys = keys
        self._schedules = schedules

    def older_than(self, age_ms: int) -> list[str]:
        """The keys of content that was stored so long ago or longer, and is not needed."""
        before_ms = clock.now_ms() - age_ms
        unneeded: list[str] = []
        unsure: set[str] = set()
        for key, facts in self._index():
            if facts.get("at", 0) > before_ms or self._is_kept_by_group(facts):
                continue
            task_id = str(facts.get("task"))
            found, result = self._run("HMGET", self._keys.record(task_id), "state", "result")
            state = None if found is None else as_text(found)
            if facts["kind"] == "result":
                if not self._is_result_needed(key, task_id, state, result or b""):
                    unneeded.append(key)
            elif state in _DONE:
                unneeded.append(key)
            elif state in (None, "dead_lettered"):
                unsure.add(key)
        return unneeded + sorted(unsure - self._referred_to() if unsure else ())

    def _index(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for key, text in self._scan(self._keys.payloads):
            try:
                facts = json.loads(text)
            except ValueError:
                facts = None
            # What a later version may have written stays.
            if isinstance(facts, dict) and facts.get("kind") in ("args", "result"):
                yield as_text(key), facts

    def _is_kept_by_group(self, facts: Mapping[str, Any]) -> bool:
        if not facts.get("group"):
            return False
        queue, group_id = facts["group"]
        return bool(self._run("EXISTS", QueueKeys(self._keys.namespace, queue).group(group_id)))

    def _is_result_needed(self, key: str, task_id: str, state: str | None, result: bytes) -> bool:
        is_ended = state in (None, "dead_lettered") or state in _DONE
        if not is_ended or self._run("HEXISTS", self._keys.follow_ups, task_id):
            return True
        try:
            reference = reference_in(result)
        except ValueError:
            return True
        return reference is not None and reference.key == key

    def _referred_to(self) -> set[str]:
        """All keys in the envelopes of the queue, in the order in which a task moves: none is missed."""
        found: set[str] = set()
        for one in self._schedules.pending():
            if isinstance(one.delivery, TaskDelivery):
                found.update(as_text(key) for key in _KEY.findall(one.delivery.task.data))
        for _, item in self._scan(self._keys.delayed_items):
            found.update(as_text(key) for key in _KEY.findall(item))
        for stream in (*self._keys.streams, self._keys.dead_letters):
            start, entries = "-", None
            while entries is None or len(entries) == _PAGE:
                entries = self._run("XRANGE", stream, start, "+", "COUNT", _PAGE)
                for entry_id, fields in entries:
                    start = f"({as_text(entry_id)}"
                    for _, value in pairs_of(fields):
                        found.update(as_text(key) for key in _KEY.findall(value))
        return found

    def _scan(self, hash_key: str) -> Iterator[tuple[bytes, bytes]]:
        cursor: Any = 0
        while True:
            cursor, reply = self._run("HSCAN", hash_key, cursor, "COUNT", _PAGE)
            flat = [part for pair in reply.items() for part in pair] if isinstance(reply, dict) else reply
            yield from zip(flat[::2], flat[1::2], strict=True)
            if int(cursor) == 0:
                return

    def _run(self, *command: Any) -> Any:
        return run_command(self._client, *command, stream=self._keys.prefix, group=None)
