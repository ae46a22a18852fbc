"""What a schedule enqueues: a task, or a message to a stream or a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from conquiet.arguments import check_name
from conquiet.payload import encode_payload
from conquiet.tasks.options import TaskOptions

#: Options of a task that a schedule may change: those that are JSON, but for its delay.
_OPTIONS = frozenset(one.name for one in fields(TaskOptions)) - {"delay_s", "eta", "retry", "rate_key"}


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """A task by its name.

    Examples:
        >>> target = TaskTarget("shop.close", {"till": 7}, {"queue": "tills"})
        >>> schedule = Schedule.of("close", target, cron="0 22 * * *")
    """

    task: str
    #: As JSON values.
    args: Mapping[str, Any] = field(default_factory=dict)
    #: Of `TaskOptions`, those that differ from the task's own.
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("task", self.task)
        if unknown := self.options.keys() - _OPTIONS:
            raise ValueError(
                f"{', '.join(sorted(unknown))}: not an option of a schedule's task, which may have "
                f"{', '.join(sorted(_OPTIONS))}"
            )
        TaskOptions().but(**self.options)
        encode_payload({"args": dict(self.args), "options": dict(self.options)})

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return _without_empty({"task": self.task, "args": dict(self.args), "options": dict(self.options)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTarget:
    """A message to a plain stream, which is created if it is not there, or to a topic.

    Examples:
        >>> target = MessageTarget(kind="stream", name="ticks", payload={"every": "minute"})
        >>> schedule = app.new_schedule("tick", target, cron="* * * * *")
    """

    kind: Literal["stream", "topic"]
    name: str
    payload: Mapping[str, Any]
    #: Both of a topic only.
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.kind, self.name)
        encode_payload({"payload": dict(self.payload), "headers": dict(self.headers)})
        if self.kind == "stream" and (self.key is not None or self.headers):
            raise ValueError("key and headers are of messages to a topic: a plain stream has payloads alone")
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be a str, got {self.key!r:.100}")
        for text in (each for pair in self.headers.items() for each in pair):
            if not isinstance(text, str):
                raise TypeError(f"headers must have strings, got {text!r:.100}")

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        document = {
            self.kind: self.name,
            "payload": dict(self.payload),
            "key": self.key,
            "headers": dict(self.headers),
        }
        return {"payload": {}} | _without_empty(document)


Target = TaskTarget | MessageTarget

#: Keys of a document that are a target's.
TARGET_KEYS = frozenset(("task", "args", "options", "stream", "topic", "payload", "key", "headers"))


def target_of(document: Mapping[str, Any]) -> Target:
    """The target of a document.

    Raises:
        ValueError: it has none, or more than one.
    """
    kinds = [kind for kind in ("task", "stream", "topic") if document.get(kind) is not None]
    if len(kinds) != 1:
        raise ValueError("a schedule needs one of task, stream and topic")
    [kind] = kinds
    wanted = {"task": ("args", "options"), "stream": ("payload",), "topic": ("payload", "key", "headers")}[
        kind
    ]
    given = {name: document[name] for name in TARGET_KEYS - {kind} if document.get(name) is not None}
    if wrong := given.keys() - set(wanted):
        raise ValueError(f"{', '.join(sorted(wrong))} does not belong to a schedule of a {kind}")
    for name in given.keys() - {"key"}:
        if not isinstance(given[name], Mapping):
            raise TypeError(f"{name} must have names and values, got {given[name]!r:.100}")
    if kind == "task":
        return TaskTarget(document["task"], **given)
    return MessageTarget(kind=kind, name=document[kind], **{"payload": {}} | given)  # type: ignore[arg-type]


def changed_options(options: TaskOptions, declared: TaskOptions) -> dict[str, Any]:
    """Those that `with_options` has changed.

    Raises:
        ValueError: one of them cannot be kept.
    """
    changed = {
        one.name: getattr(options, one.name)
        for one in fields(TaskOptions)
        if getattr(options, one.name) != getattr(declared, one.name)
    }
    if wrong := changed.keys() - _OPTIONS:
        raise ValueError(f"{', '.join(sorted(wrong))}: a schedule cannot change this option of its task")
    return changed


def _without_empty(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value not in (None, {})}
