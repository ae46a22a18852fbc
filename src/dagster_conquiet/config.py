"""What a run may change about a drain, a recovery or a replay: the config of their ops."""

from __future__ import annotations

from typing import Any, TypeVar

import dagster as dg
from pydantic import Field, create_model

_C = TypeVar("_C", bound=dg.Config)


class DrainConfig(dg.Config):
    """The limits of one drain; a launchpad or a RunRequest may set each of them anew."""

    max_messages: int = Field(default=1_000, gt=0, description="The most messages that one step handles.")
    max_duration_s: float | None = Field(
        default=None, description="No message is begun after this time; keep it below the step's own limit."
    )
    idle_ms: int = Field(default=500, gt=0, description="The drain ends when nothing came for this time.")
    max_failures: int = Field(
        default=10,
        gt=0,
        description="This many failed messages fail the step; fewer stay pending, counted and logged.",
    )
    max_deliveries: int | None = Field(
        default=5, description="A message delivered more often goes to the dead letters unhandled."
    )
    batch_size: int = Field(default=100, gt=0, description="The most messages that one read asks for.")


class ClaimStaleConfig(DrainConfig):
    """The limits of one recovery."""

    min_idle_ms: int = Field(
        default=60_000,
        ge=0,
        description="How long nobody has touched a message; longer than your longest handler.",
    )


class TopicDrainConfig(dg.Config):
    """The limits of one drain of one partition."""

    max_messages: int = Field(default=1_000, gt=0, description="The most messages that one step handles.")
    max_duration_s: float | None = Field(default=None, description="No message is begun after this time.")
    idle_ms: int = Field(default=500, gt=0, description="The drain ends when nothing came for this time.")
    max_attempts: int = Field(default=5, gt=0, description="Attempts before a message is a dead letter.")
    retry_delay_ms: int = Field(default=1_000, gt=0, description="The wait before the second attempt.")


class ReplayConfig(dg.Config):
    """Which dead letters are replayed."""

    limit: int = Field(default=1_000, gt=0, description="The most that one run replays.")
    dry_run: bool = Field(default=False, description="Only tell what would be replayed.")
    error_type: str | None = Field(default=None, description="Topics: only letters of this error.")
    group: str | None = Field(default=None, description="Topics: only letters of this group.")
    per_second: float | None = Field(default=None, description="Topics: the pace of the replay.")


def with_defaults(defaults: _C) -> type[_C]:
    """A class of the same fields, whose defaults are the values of this object."""
    kind = type(defaults)
    fields: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        described = Field(default=getattr(defaults, name), description=field.description)
        fields[name] = (field.annotation, described)
    return create_model(kind.__name__, __base__=kind, __module__=kind.__module__, **fields)
