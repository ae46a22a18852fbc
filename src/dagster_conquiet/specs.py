"""What is drained, by which group and which handler: stated once, passed to every factory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from conquiet.consume import DrainReport, check_handler, load_handler
from conquiet.db import Inbox
from conquiet.queue.config import CLAIM_IDLE_MS
from dagster_conquiet.asset_keys import plain_name
from dagster_conquiet.config import DrainConfig, TopicDrainConfig
from dagster_conquiet.handlers import resource_names
from dagster_conquiet.resources import ResourceKeys

#: `handler(msg, session)`, or where to import it from: "shop.handlers:bill".
HandlerOrReference = Callable[..., Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """What the drain of a stream and that of a topic have in common."""

    #: The consumer group; created at the stream's start if it does not exist.
    group: str
    #: `handler(msg, session)`, or a `batch_handler` of `(messages, session)`; one that also names `context`
    #: or resources as arguments is given them. `None`: the function below `@drain_asset` or `@drain_op`. An
    #: import string is loaded when a step runs, so that definitions load without the handler's imports. A
    #: topic's may return `Ack()`, `Retry(delay_ms)` or `DeadLetter(reason)`.
    handler: HandlerOrReference | None = None
    #: The type of `msg.payload`, as a dataclass or a model, or "package.module:Class", which is loaded when a
    #: step runs. `None`: a dict. A message that does not fit it fails.
    payload: Any = None
    #: `None`: a redelivered message is handled again.
    inbox: Inbox | None = field(default_factory=Inbox)
    #: The names of the resources, if they are others than `redis_streams` and `database`.
    resources: ResourceKeys = field(default_factory=ResourceKeys)
    #: More resources that a step needs: those that a handler takes which is named by an import string.
    required_resource_keys: Collection[str] = ()
    #: A rule of your own, `fail_when(report)`, instead of the config's `fail_when`: whether the step fails.
    fail_when: Callable[[DrainReport], bool] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.required_resource_keys, str):
            names = self.required_resource_keys
            raise TypeError(f"required_resource_keys must be names, as {{{names!r}}}, got {names!r}")
        if self.handler is None:
            return
        if callable(self.handler):
            check_handler(self.handler)
        elif not isinstance(self.handler, str) or not all(self.handler.partition(":")):
            raise ValueError(f'handler must be a function or "package.module:function", got {self.handler!r}')

    @property
    def source(self) -> str:
        """The stream or the topic."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """What definitions are named after unless they are given a name."""
        return f"{plain_name(self.source)}__{plain_name(self.group, is_one_part=True)}"

    @property
    def pool(self) -> str:
        """The concurrency pool of every drain of this source and group."""
        return f"conquiet_{self.name}"

    def load_handler(self) -> Callable[..., Any]:
        """The handler itself, imported now if it was named."""
        if self.handler is None:
            raise ValueError(
                f"the spec of {self.source!r} has no handler: give it one, or decorate one with @drain_asset"
            )
        return load_handler(self.handler) if isinstance(self.handler, str) else self.handler

    @property
    def resource_keys(self) -> set[str]:
        """The resources that a step needs; of a handler that is imported later, those that are named."""
        of_handler = resource_names(self.handler) if callable(self.handler) else set()
        return {self.resources.redis, self.resources.database, *self.required_resource_keys} | of_handler


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSpec(SourceSpec):
    """One stream, the group that drains it, and the handler of its messages.

    Examples:
        >>> limits = DrainConfig(max_deliveries=5)
        >>> spec = DrainSpec(stream="orders", group="billing", handler=bill, config=limits)
        >>> spec.name
        'orders__billing'
    """

    #: The key of the stream.
    stream: str
    #: The defaults of a run's config.
    config: DrainConfig = field(default_factory=DrainConfig)
    #: Idle for longer, a message is claimed by the recovery. Half of this time after a read, a drain checks
    #: which of its messages are still its own.
    claim_idle_ms: int = CLAIM_IDLE_MS

    @property
    def source(self) -> str:
        return self.stream


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDrainSpec(SourceSpec):
    """One topic of partitions, the group that drains it, and the handler of its messages.

    Examples:
        >>> spec = TopicDrainSpec(topic="shipments", group="couriers", handler=bill)
    """

    #: The name of the topic.
    topic: str
    #: As many as the topic has; the keys of the Dagster partitions are "0" to one less. `None`: the topic is
    #: followed as it grows, by the sensor and by observations.
    partitions: int | None = None
    #: The defaults of a run's config.
    config: TopicDrainConfig = field(default_factory=TopicDrainConfig)

    def __post_init__(self) -> None:
        SourceSpec.__post_init__(self)
        if self.partitions is None:
            return
        if type(self.partitions) is not int or self.partitions < 1:
            raise ValueError(f"partitions must be a whole number above 0, got {self.partitions!r}")

    @property
    def source(self) -> str:
        return self.topic


AnySpec = DrainSpec | TopicDrainSpec
