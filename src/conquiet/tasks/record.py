"""TaskStatus: state, history and result of a task, as its record in Redis has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from conquiet.queue.connection import as_text
from conquiet.tasks.payloads import Reference, reference_in


class TaskState(StrEnum):
    """What a task is; the last four are final.

    Examples:
        >>> TaskState.SUCCEEDED.is_final, TaskState("queued").is_final
        (True, False)
    """

    QUEUED = "queued"
    RUNNING = "running"
    RETRIED = "retried"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    DEAD_LETTERED = "dead_lettered"
    REVOKED = "revoked"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self in _FINAL


_STATES = frozenset(TaskState)
_FINAL = frozenset((TaskState.SUCCEEDED, TaskState.DEAD_LETTERED, TaskState.REVOKED, TaskState.EXPIRED))


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of a task from a state to the next."""

    state: str
    at: datetime
    #: Whatever was written with it: worker, attempt, error.
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """What is known of a task.

    Examples:
        >>> status = price.enqueue(1, 2).status()
        >>> status.state.is_final in (True, False)
        True
    """

    id: str
    queue: str
    name: str
    state: TaskState
    #: The attempt that runs or was the last one, counted from 0.
    attempt: int = 0
    worker: str | None = None
    #: Class and text of the last error.
    error: str | None = None
    traceback: str | None = None
    #: As JSON; `TaskHandle.result` returns it as the task did.
    result: Any = None
    #: Where the result is, if it is in the payload store.
    stored: Reference | None = None
    #: Between 0 and 1, with a text.
    progress: float | None = None
    progress_text: str = ""
    history: tuple[Transition, ...] = ()

    @classmethod
    def of(cls, task_id: str, queue: str, reply: list[bytes]) -> Self | None:
        """The record as HGETALL returns it; `None` if there is none. Unknown fields are left out."""
        fields = {as_text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
        text = as_text(fields.get("state", b""))
        if text not in _STATES:
            return None
        progress = _json_of(fields.get("progress"), dict) or {}
        stored = _stored(fields.get("result", b""))
        return cls(
            id=task_id,
            queue=queue,
            name=as_text(fields.get("name", b"")),
            state=TaskState(text),
            attempt=int(fields.get("attempt") or 0),
            worker=as_text(fields["worker"]) if "worker" in fields else None,
            error=as_text(fields["error"]) if fields.get("error") else None,
            traceback=as_text(fields["traceback"]) if fields.get("traceback") else None,
            result=None if stored is not None else _json_of(fields.get("result"), object),
            stored=stored,
            progress=progress.get("fraction"),
            progress_text=progress.get("text", ""),
            history=_history(fields),
        )


#: Of two steps in one millisecond.
_ORDER = {"queued": 0, "running": 1, "dead_lettered": 3}


def step_name(state: str, at_ms: int) -> str:
    """The name of a record's field for one step; its value is a JSON object of facts."""
    return f"at:{at_ms}:{state}"


def _history(fields: Mapping[str, bytes]) -> tuple[Transition, ...]:
    steps = []
    for name, value in fields.items():
        prefix, _, rest = name.partition(":")
        at_ms, _, state = rest.partition(":")
        if prefix == "at" and at_ms.isdecimal():
            moment = datetime.fromtimestamp(int(at_ms) / 1000, UTC)
            steps.append(Transition(state, moment, _json_of(value, dict) or {}))
    return tuple(sorted(steps, key=lambda step: (step.at, _ORDER.get(step.state, 2))))


def _stored(result: bytes) -> Reference | None:
    try:
        return reference_in(result)
    except ValueError:
        # Neither a result nor a reference: `result()` must fail, not return `None`.
        return Reference("", "", 0)


def _json_of(value: bytes | None, kind: type) -> Any:
    try:
        found = None if not value else json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, kind) else None
