"""What is drained, for whom and by what: said once, handed to every factory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conquiet.consume import load_handler
from conquiet.db import Inbox
from dagster_conquiet.asset_keys import plain_name
from dagster_conquiet.config import DrainConfig, TopicDrainConfig

#: `handler(msg, session)`, or where to import it from: "shop.handlers:bill".
HandlerOrReference = Callable[..., Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKeys:
    """The names under which the resources stand in the Definitions."""

    redis: str = "redis_streams"
    database: str = "database"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSpec:
    """One stream, the group that drains it, and the handler of its messages."""

    stream: str
    group: str
    #: An import string is loaded when a step runs, so that definitions load without the handler's imports.
    handler: HandlerOrReference
    #: The defaults of a run's config.
    config: DrainConfig = field(default_factory=DrainConfig)
    #: `None`: a redelivered message is handled again.
    inbox: Inbox | None = field(default_factory=Inbox)
    #: Half of this time after a read, a drain asks which of the messages that it holds are still its own.
    claim_idle_ms: int = 60_000
    resources: ResourceKeys = field(default_factory=ResourceKeys)

    def __post_init__(self) -> None:
        check_reference(self.handler)

    @property
    def name(self) -> str:
        """What definitions are named after unless told otherwise."""
        return f"{plain_name(self.stream)}__{plain_name(self.group)}"

    @property
    def pool(self) -> str:
        """The concurrency pool of every drain of this stream and group."""
        return f"conquiet_{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDrainSpec:
    """One topic of partitions, the group that drains it, and the handler of its messages."""

    topic: str
    #: As many as the topic has; the keys of the Dagster partitions are "0" to one less.
    partitions: int
    group: str
    #: As in `DrainSpec`; it may return `Ack()`, `Retry(delay_ms)` or `DeadLetter(reason)`.
    handler: HandlerOrReference
    config: TopicDrainConfig = field(default_factory=TopicDrainConfig)
    inbox: Inbox | None = field(default_factory=Inbox)
    resources: ResourceKeys = field(default_factory=ResourceKeys)

    def __post_init__(self) -> None:
        check_reference(self.handler)
        if type(self.partitions) is not int or self.partitions < 1:
            raise ValueError(f"partitions must be a whole number above 0, got {self.partitions!r}")

    @property
    def name(self) -> str:
        """What definitions are named after unless told otherwise."""
        return f"{plain_name(self.topic)}__{plain_name(self.group)}"

    @property
    def pool(self) -> str:
        """The concurrency pool of every drain of this topic and group."""
        return f"conquiet_{self.name}"


def check_reference(handler: HandlerOrReference) -> None:
    """Refuse at load time what could never be called; imports nothing."""
    if callable(handler):
        return
    module, _, function = handler.partition(":") if isinstance(handler, str) else ("", "", "")
    if not module or not function:
        raise ValueError(f'handler must be a function or "package.module:function", got {handler!r}')


def handler_of(handler: HandlerOrReference) -> Callable[..., Any]:
    """The handler itself, imported now if it was named."""
    return load_handler(handler) if isinstance(handler, str) else handler
