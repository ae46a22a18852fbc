"""How a consumer of partitions behaves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from conquiet.arguments import check_name, check_positive_int
from conquiet.consume.handler_kinds import PayloadType
from conquiet.consume.limits import DEFAULT_BATCH_SIZE, DrainLimits, OrderBy, check_order_by
from conquiet.mq.look.group_changes import id_before
from conquiet.mq.own.retry_policy import RetryPolicy
from conquiet.mq.own.settlement import SettlementRules
from conquiet.payload import PayloadCodec, check_codec
from conquiet.queue import unique_consumer_name
from conquiet.queue.batch_size import BATCH_BYTES
from conquiet.queue.config import CLAIM_IDLE_MS

DEFAULT_MAX_BYTES = 2 * BATCH_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer of partitions behaves; the defaults suit handlers from microseconds to hours.

    Examples:
        >>> config = ConsumerConfig(lease_ttl_ms=30_000, retry=RetryPolicy(max_attempts=3), ordering="strict")
    """

    #: Unique among live processes: of two with one name, one waits until the other's leases expire.
    consumer_name: str = field(default_factory=unique_consumer_name)
    #: How often, how soon and after which exceptions a failed message is tried again.
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    #: "in_place": a retried message keeps its id and is seen by this group alone. "requeue": a copy is added
    #: later, for this group.
    retry_mode: Literal["in_place", "requeue"] = "in_place"
    #: "strict": while a message waits for its retry, later ones of the same key wait behind it.
    ordering: Literal["default", "strict"] = "default"
    #: With strict ordering: messages of a partition that may wait behind others before it reads no more.
    max_parked: int = 1_000
    #: The most partitions that it owns at once; the others of its group share the rest. `None`: a consumer
    #: owns its fair share, however many that are, and `drain_topic` takes one after the other.
    max_partitions: int | None = None
    #: The most handlers that run at once, over all partitions that it owns: a partition waits for its turn
    #: before it begins its next message. `None` for one handler in each partition.
    max_handlers: int | None = None
    #: How many messages of each partition are handled at once, each in a thread and a connection of its own;
    #: the order of each key is kept. Of a drain with limits of its own `DrainLimits.concurrency` counts.
    concurrency: int = 1
    #: As `DrainLimits.order_by`: another order than that of the keys, or `False` for none.
    order_by: OrderBy | None = None
    #: The most messages that one read of a partition asks for.
    batch_size: int = DEFAULT_BATCH_SIZE
    #: The most bytes of messages that this consumer has in memory, as they are in Redis, over all partitions
    #: that it owns: a partition waits for its turn before it reads on. A message needs two to five times as
    #: much. One that is larger is read when no more than a quarter of it is in use.
    max_bytes: int = DEFAULT_MAX_BYTES
    #: Where a group begins that nobody has created before: "start", "end" (as Redis: "$"), an entry id or a
    #: time in ms. It begins there in all partitions at one moment, and in those that are added later with
    #: their first message. For a group that is there it means nothing: `MqAdmin.reset_group` moves one.
    group_start: str | int = "start"
    #: The type of `msg.payload`, as a dataclass or a model, or "package.module:Class"; a dict unless given.
    payload: Any = None
    #: Makes values of that type; `StandardCodec` unless given.
    codec: PayloadCodec | None = None
    #: How long one read waits for new messages.
    block_ms: int = 1_000
    #: Names of consumers that are known to be dead, as earlier tries of the same task: their leases are taken
    #: at once instead of when they expire.
    take_over_from: tuple[str, ...] = ()
    #: What is pending in an owned partition for so long and not in flight, as what a reader without a lease
    #: left that died, is taken over; the owner looks for it four times in this time.
    claim_idle_ms: int = CLAIM_IDLE_MS
    #: How long a partition stays with an owner that does not renew its lease.
    lease_ttl_ms: int = 15_000
    #: A handler that runs longer is logged and counted; it is never interrupted.
    handler_timeout_s: float | None = None
    #: How long Redis or the database may be unavailable, or one partition fail, before `run` raises.
    max_outage_s: float = 60.0

    def __post_init__(self) -> None:
        check_name("consumer_name", self.consumer_name)
        for name in (
            "lease_ttl_ms",
            "batch_size",
            "max_bytes",
            "block_ms",
            "max_parked",
            "claim_idle_ms",
            "concurrency",
        ):
            check_positive_int(name, getattr(self, name))
        for name in ("max_partitions", "max_handlers"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        if isinstance(self.take_over_from, str) or self.consumer_name in self.take_over_from:
            raise ValueError(
                f"take_over_from must be names of other consumers than {self.consumer_name!r}, "
                f"got {self.take_over_from!r}"
            )
        id_before(self.group_start)
        check_codec(self.codec)
        if self.ordering not in ("default", "strict"):
            raise ValueError(f"ordering must be 'default' or 'strict', got {self.ordering!r}")
        if self.retry_mode not in ("in_place", "requeue"):
            raise ValueError(f"retry_mode must be 'in_place' or 'requeue', got {self.retry_mode!r}")
        check_order_by(self.order_by)
        self.check_order(self.order_by)
        if self.retry_mode == "requeue" and self.ordering == "strict":
            raise ValueError("strict ordering cannot be kept with retry_mode='requeue': a copy comes behind")

    @property
    def tick_s(self) -> float:
        """How often leases are renewed and the group is looked at."""
        return min(1.0, self.lease_ttl_ms / 1000 / 3)

    def valid_until(self, asked: float) -> float:
        """Until when, by `lease_clock`, a lease that was asked for at `asked` is certainly held."""
        # From the moment before the request, and a tenth less: clocks run at slightly different speeds.
        return asked + self.lease_ttl_ms / 1000 * 0.9

    def no_limits(self) -> DrainLimits:
        """Of a consumer that works until it is stopped."""
        return replace(self.drain_limits(), max_messages=None, idle_ms=None, max_failures=None)

    def drain_limits(self) -> DrainLimits:
        """Of a drain that was given no limits."""
        return DrainLimits(batch_size=self.batch_size, concurrency=self.concurrency, order_by=self.order_by)

    def check_order(self, order_by: OrderBy | None) -> None:
        """Refuse an order that strict ordering, which is by key, would not keep."""
        if self.ordering == "strict" and order_by is not None:
            raise ValueError(f"strict ordering is that of the keys: leave out order_by, got {order_by!r}")

    @classmethod
    def of(cls, config: object) -> ConsumerConfig:
        """The config that was given, or the default.

        Raises:
            TypeError: it is something else, as the limits of a drain.
        """
        if config is None:
            return cls()
        if not isinstance(config, cls):
            raise TypeError(f"config must be a ConsumerConfig, got {config!r:.100}")
        return config

    def payload_type(self) -> PayloadType | None:
        """What a handler's messages have as their payload; `None` for dicts as they are."""
        return PayloadType.of(self.payload, self.codec)

    def settlement_rules(self) -> SettlementRules:
        """How this consumer settles."""
        return SettlementRules(policy=self.retry, mode=self.retry_mode, consumer=self.consumer_name)
