"""What the YAML of the components has in common, and the definitions that follow from it."""

# No `from __future__ import annotations` here: the YAML schema is made from the types.
# Defaults are values, not factories: Dagster before 1.12.5 takes no factories.

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_conquiet.checks import (
    build_backlog_check,
    build_dead_letter_check,
    build_freshness_check,
    build_lag_growth_check,
    build_oldest_age_check,
)
from dagster_conquiet.config import FailWhen, LimitsConfig
from dagster_conquiet.described import tags_of
from dagster_conquiet.resources import DatabaseResource, RedisStreamsResource, ResourceKeys
from dagster_conquiet.specs import AnySpec
from dagster_conquiet.steps.metadata import definition_metadata

_LIMITS = LimitsConfig()


class TopicSensorAttributes(dg.Model, dg.Resolvable):
    """When runs of the drain's job are requested."""

    minimum_interval_seconds: int = 30
    pause_after_failure_s: float = 60.0
    stalled_after_s: float = 120.0
    is_running: bool = Field(default=True, description="Whether it runs unless it is stopped in the UI.")


class SensorAttributes(TopicSensorAttributes):
    """The same of a stream."""

    min_lag: int = 1
    max_runs: int = 1


class FailAttributes(dg.Model, dg.Resolvable):
    """When messages that failed fail the step; null never does."""

    all_failed: bool = True
    dead_letters: int | None = 1
    failures: int | None = None

    def rule(self) -> FailWhen:
        return FailWhen(**self.model_dump())


class RecoveryAttributes(dg.Model, dg.Resolvable):
    """When what dead steps left is handled."""

    cron_schedule: str = "*/5 * * * *"
    min_idle_ms: int | None = Field(default=None, description="claim_idle_ms of the spec unless given.")
    is_running: bool = Field(default=True, description="Whether it runs unless it is stopped in the UI.")


class CheckAttributes(dg.Model, dg.Resolvable):
    """What the checks warn of; a limit that is not given is not checked."""

    # A condition is an object of Dagster's, which the YAML names in braces.
    model_config = ConfigDict(arbitrary_types_allowed=True)

    max_lag: int | None = Field(default=None, description="Of build_backlog_check.")
    max_lag_growth: int | None = Field(default=None, description="Of build_lag_growth_check.")
    max_age_s: float | None = Field(default=None, description="Of build_freshness_check.")
    max_oldest_age_s: float | None = Field(default=None, description="Of build_oldest_age_check.")
    max_dead_letters: int | None = Field(default=0, description="Of build_dead_letter_check.")
    severity: Literal["WARN", "ERROR"] = "WARN"
    blocking: bool = Field(
        default=False, description="Whether a check that fails with severity ERROR stops what is downstream."
    )
    descriptions: dict[str, str] = Field(
        default={},
        description="Instead of their own: by backlog, lag_growth, freshness, oldest_age and dead_letters.",
    )
    automation_condition: Annotated[
        dg.AutomationCondition[Any] | None, dg.Resolver.default(model_field_type=str | None)
    ] = Field(
        default=None,
        description='Of each check, as "{{ automation_condition.eager() }}"; then is_running may be false.',
    )
    cron_schedule: str = "*/5 * * * *"
    is_running: bool = Field(default=True, description="Whether they run unless stopped in the UI.")


class DrainAttributes(dg.Model, dg.Resolvable):
    """What the drains of a stream and of a topic have in common."""

    group: str = Field(description="The consumer group.")
    handler: str = Field(
        description='"package.module:function", or ".module:function" in the folder of the component; called '
        "as function(msg, session)."
    )
    resources: list[str] = Field(
        default=[], description="The names of the resources that the handler takes as arguments."
    )
    payload: str | None = Field(
        default=None,
        description='The type of the messages\' payloads as "package.module:Class"; a dict unless given.',
    )
    asset: dg.ResolvedAssetSpec | None = Field(
        default=None,
        description="The asset that the drain makes; named after stream or topic and group if not given.",
    )
    max_messages: int | None = Field(
        default=_LIMITS.max_messages, description="The most messages that one run handles."
    )
    max_duration_s: float | None = Field(
        default=_LIMITS.max_duration_s, description="No message is begun after this time."
    )
    max_failures: int | None = Field(
        default=_LIMITS.max_failures, description="This many failed messages fail the step."
    )
    concurrency: int = Field(
        default=_LIMITS.concurrency, description="How many messages, or batches, are handled at once."
    )
    order_by: str | None = Field(
        default=None, description="With more than one: the field whose equal values keep their order."
    )
    no_order: bool = Field(default=False, description="With more than one: messages have no order.")
    batch_size: int = Field(
        default=_LIMITS.batch_size,
        description="The most messages of one read, or of a batch handler's transaction.",
    )
    log_errors: bool = Field(
        default=_LIMITS.log_errors,
        description="Whether the text of a handler's error, which may quote its message, is logged.",
    )
    fail_when: FailAttributes = FailAttributes()
    max_retries: int = Field(default=3, description="How often a step that dies or fails is tried again.")
    checks: CheckAttributes = CheckAttributes()
    # Names of variables, not URLs: a password in a URL would be shown in the UI with the definitions.
    redis_url_variable: str | None = Field(
        default=None,
        description="The environment variable with the server's URL; else the resource `redis_streams`.",
    )
    database_url_variable: str | None = Field(
        default=None,
        description="The environment variable with the database's URL; else the resource `database`.",
    )

    def limits(self, *more: str) -> dict[str, Any]:
        """The limits of a drain by their names in its config, with these that not every drain has."""
        names = (*type(self).model_fields.keys() & LimitsConfig.model_fields.keys(), *more)
        return {name: getattr(self, name) for name in names} | {"fail_when": self.fail_when.rule()}

    def retry_policy(self) -> dg.RetryPolicy | None:
        return dg.RetryPolicy(max_retries=self.max_retries) if self.max_retries else None


# One object for each variable: Dagster merges definitions that have the same resource, and no equal ones.
@cache
def redis_of_variable(variable: str) -> RedisStreamsResource:
    """The server whose URL is in this environment variable; the same object for every component."""
    return RedisStreamsResource(url=dg.EnvVar(variable))


@cache
def database_of_variable(variable: str) -> DatabaseResource:
    """The database whose URL is in this environment variable; the same object for every component."""
    return DatabaseResource(url=dg.EnvVar(variable))


def servers(redis_variable: str | None, database_variable: str | None) -> tuple[ResourceKeys, dict[str, Any]]:
    """The names of the resources, and those that are not defined elsewhere."""
    names = {"redis": "redis_streams", "database": "database"}
    resources: dict[str, Any] = {}
    if redis_variable is not None:
        names["redis"] = f"redis_streams__{redis_variable.lower()}"
        resources[names["redis"]] = redis_of_variable(redis_variable)
    if database_variable is not None:
        names["database"] = f"database__{database_variable.lower()}"
        resources[names["database"]] = database_of_variable(database_variable)
    return ResourceKeys(**names), resources


def reference_in(reference: str, context: dg.ComponentLoadContext) -> str:
    """The full name of a handler or type; one that begins with a dot is in the folder of the component."""
    if not reference.startswith("."):
        return reference
    folder: Path = context.path if context.path.is_dir() else context.path.parent
    inside = folder.resolve().relative_to(context.defs_module_path.resolve()).parts
    return ".".join([context.defs_module_name, *inside]) + reference


def described(drained: dg.AssetsDefinition, asset: Any) -> dg.AssetsDefinition:
    """The asset of a drain with what its YAML says of it."""
    if asset is None:
        return drained

    def merged(built: dg.AssetSpec) -> dg.AssetSpec:
        spec: dg.AssetSpec = asset.merge_attributes(
            deps=built.deps, kinds=built.kinds, metadata=built.metadata
        )
        description = asset.description or built.description
        return spec.replace_attributes(partitions_def=built.partitions_def, description=description)

    return drained.map_asset_specs(merged)


def group_of(asset: Any) -> str | None:
    """The asset group of the stream's own asset: that of the asset that the drain makes."""
    return None if asset is None else asset.group_name


def checks_of(
    spec: AnySpec, limits: CheckAttributes, drained: dg.AssetsDefinition
) -> list[dg.AssetChecksDefinition]:
    """A check for each limit that is given."""
    builders: dict[str, tuple[str, Any, Callable[..., dg.AssetChecksDefinition]]] = {
        "backlog": ("max_lag", limits.max_lag, build_backlog_check),
        "lag_growth": ("max_growth", limits.max_lag_growth, build_lag_growth_check),
        "freshness": ("max_age_s", limits.max_age_s, build_freshness_check),
        "oldest_age": ("max_age_s", limits.max_oldest_age_s, build_oldest_age_check),
        "dead_letters": ("max_letters", limits.max_dead_letters, build_dead_letter_check),
    }
    if unknown := limits.descriptions.keys() - builders:
        names = ", ".join(builders)
        raise ValueError(f"descriptions of checks are of {names}, got {', '.join(sorted(unknown))}")
    options: dict[str, Any] = {
        "asset": drained,
        "severity": dg.AssetCheckSeverity[limits.severity],
        "blocking": limits.blocking,
        "automation_condition": limits.automation_condition,
    }
    checks = []
    for check, (name, limit, build) in builders.items():
        own = {"description": limits.descriptions[check]} if check in limits.descriptions else {}
        if limit is not None:
            checks.append(build(spec, **{name: limit}, **options, **own))
    return checks


def drain_job(spec: AnySpec, drained: dg.AssetsDefinition) -> Any:
    """The job of the drain, without the checks: right after a drain they would find nothing."""
    return dg.define_asset_job(
        f"drain_{spec.name}",
        dg.AssetSelection.assets(drained).without_checks(),
        description=f"Drains {spec.source!r} for {spec.group!r}.",
        tags=tags_of(spec),
        metadata=definition_metadata(spec),
    )


def check_schedules(
    spec: AnySpec, checks: Sequence[dg.AssetChecksDefinition], attributes: CheckAttributes
) -> list[dg.ScheduleDefinition]:
    """The schedule of the checks, if there are any."""
    if not checks:
        return []
    job = dg.define_asset_job(
        f"check_{spec.name}",
        dg.AssetSelection.checks(*checks),
        description=f"Checks {spec.source!r} for {spec.group!r}.",
        tags=tags_of(spec),
        metadata=definition_metadata(spec),
        executor_def=dg.in_process_executor,
    )
    status = status_of(dg.DefaultScheduleStatus, attributes.is_running)
    return [
        dg.ScheduleDefinition(
            job=job,
            cron_schedule=attributes.cron_schedule,
            default_status=status,
            description=job.description,
            tags=tags_of(spec),
            metadata=definition_metadata(spec),
        )
    ]


def status_of(statuses: Any, is_running: bool) -> Any:
    """RUNNING or STOPPED, of sensors or of schedules."""
    return statuses.RUNNING if is_running else statuses.STOPPED
