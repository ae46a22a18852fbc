"""What a run may change about a drain, a recovery or a replay: the config of their ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self, TypeVar

import dagster as dg
from pydantic import Field, create_model, model_validator

from conquiet.consume import DrainLimits
from conquiet.mq import RetryPolicy

_C = TypeVar("_C", bound=dg.Config)
#: A step drains until nothing is left, within the time of its run.
_LIMITS = DrainLimits(max_messages=None, max_duration_s=600.0)
_RETRY = RetryPolicy()


class FailWhen(dg.Config):
    """When messages that failed fail the step; the first rule that holds does, and null never holds.

    `max_failures` fails it too, and ends the drain.

    Examples:
        >>> config = DrainConfig(fail_when=FailWhen(failures=10, dead_letters=None))
    """

    all_failed: bool = Field(default=True, description="If messages failed, and none was handled.")
    dead_letters: int | None = Field(default=1, gt=0, description="If so many became dead letters.")
    failures: int | None = Field(default=None, gt=0, description="If so many failed, dead letters included.")


class LimitsConfig(dg.Config):
    """The limits of every drain; null is no limit."""

    max_messages: int | None = Field(
        default=_LIMITS.max_messages, gt=0, description="The most messages that one step handles."
    )
    max_duration_s: float | None = Field(
        default=_LIMITS.max_duration_s,
        gt=0,
        description="No message is begun after this time; keep it below the step's own limit.",
    )
    idle_ms: int | None = Field(
        default=_LIMITS.idle_ms,
        gt=0,
        description="The drain ends when there was nothing to read for this time.",
    )
    max_failures: int | None = Field(
        default=_LIMITS.max_failures,
        gt=0,
        description="This many failed messages fail the step; fewer are counted and logged.",
    )
    batch_size: int = Field(
        default=_LIMITS.batch_size,
        gt=0,
        description="The most messages of one read, and of a batch handler those of one transaction.",
    )
    concurrency: int = Field(
        default=_LIMITS.concurrency,
        gt=0,
        description="How many messages, or batches, are handled at once, each with a connection of its own.",
    )
    order_by: str | None = Field(
        default=None,
        description="With more than one at once: the payload's field whose equal values keep their order.",
    )
    no_order: bool = Field(
        default=False, description="With more than one at once: whether messages have no order at all."
    )
    fail_when: FailWhen = Field(default=FailWhen(), description="When failed messages fail the step.")
    log_errors: bool = Field(
        default=False,
        description="Whether the text of a handler's error, which may quote its message, is logged.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.no_order and self.order_by is not None:
            raise ValueError(f"order_by={self.order_by!r} and no_order exclude each other")
        return self

    def limits(self, should_stop: Callable[[], bool]) -> DrainLimits:
        """The limits of a drain in a step: it goes on after a failed message."""
        names = {field.name for field in fields(DrainLimits)} & set(type(self).model_fields)
        values = {name: getattr(self, name) for name in names}
        if self.no_order:
            values["order_by"] = False
        return DrainLimits(**values, on_error="continue", should_stop=should_stop)


class DrainConfig(LimitsConfig):
    """The limits of one drain of a stream; a launchpad or a RunRequest may override each of them.

    Examples:
        >>> config = DrainConfig(max_messages=5_000, concurrency=4, order_by="customer")
    """

    max_deliveries: int | None = Field(
        default=_LIMITS.max_deliveries,
        gt=0,
        description="A message delivered more often becomes a dead letter instead of being handled.",
    )
    take_over_dead: bool = Field(
        default=_LIMITS.take_over_dead,
        description="First handle what is pending at consumers whose drain has died.",
    )

    @model_validator(mode="after")
    def _check_concurrency(self) -> Self:
        # In time for the launchpad: a step could only fail, and be retried.
        if self.concurrency > 1 and self.order_by is None and not self.no_order:
            raise ValueError(
                f"concurrency={self.concurrency} handles messages of a stream at the same time: say what "
                "keeps its order, as order_by='customer', or no_order=True if nothing has to"
            )
        return self


class ClaimStaleConfig(DrainConfig):
    """The limits of one recovery.

    Examples:
        >>> config = ClaimStaleConfig(min_idle_ms=600_000, max_deliveries=5)
    """

    min_idle_ms: int | None = Field(
        default=None,
        ge=0,
        description="How long a message must be idle to be claimed, longer than your longest handler; "
        "the spec's claim_idle_ms unless given.",
    )


class TopicDrainConfig(LimitsConfig):
    """The limits of one drain of one partition.

    Examples:
        >>> config = TopicDrainConfig(max_attempts=3, retry_delay_ms=500)
    """

    max_attempts: int = Field(
        default=_RETRY.max_attempts, gt=0, description="Attempts before a message is a dead letter."
    )
    retry_delay_ms: int = Field(
        default=_RETRY.base_delay_ms, gt=0, description="The wait before the second attempt."
    )


class ReplayConfig(dg.Config):
    """Which dead letters are replayed.

    Examples:
        >>> config = ReplayConfig(error_type="NoStockError", per_second=50, dry_run=True)
    """

    limit: int = Field(default=1_000, gt=0, description="The most that one run replays.")
    dry_run: bool = Field(default=False, description="Only report what would be replayed.")
    error_type: str | None = Field(default=None, description="Only letters of this error.")
    group: str | None = Field(default=None, description="Only letters of this group.")
    per_second: float | None = Field(default=None, description="At most this many a second.")
    to_all_groups: bool = Field(
        default=False, description="Add copies that every group is given, also of trimmed entries."
    )


def with_defaults(defaults: _C) -> type[_C]:
    """A class of the same fields, whose defaults are the values of this object."""
    kind = type(defaults)
    described: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        annotation, value = field.annotation, getattr(defaults, name)
        if isinstance(value, dg.Config):
            # Dagster fills what a nested default leaves out, null included, from the defaults of its class.
            annotation = with_defaults(value)
            value = annotation()
        described[name] = (annotation, Field(default=value, description=field.description))
    return create_model(kind.__name__, __base__=kind, __module__=kind.__module__, **described)
