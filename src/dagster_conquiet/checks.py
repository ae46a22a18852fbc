"""Asset checks: how much waits, for how long, and what will not be tried again; all of them only warn."""

# No `from __future__ import annotations` here: Dagster reads the type of the context.

from typing import Any

import dagster as dg

from conquiet.queue import BacklogStats, peek_backlog
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.backlogs import dead_letter_count, topic_backlog
from dagster_conquiet.draining import COUNT_LIMIT, redis_of
from dagster_conquiet.metadata import Metadata, backlog_metadata
from dagster_conquiet.specs import DrainSpec, TopicDrainSpec

AnySpec = DrainSpec | TopicDrainSpec


def build_backlog_check(
    spec: AnySpec, *, max_lag: int, asset: Any = None, name: str = "backlog"
) -> dg.AssetChecksDefinition:
    """Warns if more than `max_lag` messages wait or are pending, or if nobody can tell how many."""

    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        stats = _look(context, spec)
        waiting = None if stats.lag is None else stats.lag + stats.pending
        is_fine = waiting is not None and waiting <= max_lag
        told = "an unknown number of" if waiting is None else str(waiting)
        return _result(is_fine, f"{told} messages wait or are pending", stats, {"max_lag": max_lag})

    return _check(spec, check, asset=asset, name=name)


def build_freshness_check(
    spec: AnySpec, *, max_age_s: float, asset: Any = None, name: str = "freshness"
) -> dg.AssetChecksDefinition:
    """Warns if a message has waited longer than `max_age_s`: what was made of the stream is that far behind.

    Freshness by the age of the last run would call an asset stale whose stream is simply quiet.
    """

    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        stats = _look(context, spec)
        ages = (stats.oldest_undelivered_age_ms or 0, stats.oldest_pending_age_ms or 0)
        age_s = max(ages) / 1000
        told = f"the oldest unfinished message is {age_s:.1f} s old"
        return _result(age_s <= max_age_s, told, stats, {"behind_s": age_s, "max_age_s": max_age_s})

    return _check(spec, check, asset=asset, name=name)


def build_dead_letter_check(
    spec: AnySpec, *, max_letters: int = 0, asset: Any = None, name: str = "dead_letters"
) -> dg.AssetChecksDefinition:
    """Warns if there are more than `max_letters` dead letters: nothing tries them again by itself."""

    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with redis_of(context, spec.resources).connect() as client:
            count = dead_letter_count(client, spec)
        return dg.AssetCheckResult(
            passed=count <= max_letters,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{count} dead letters; a replay moves them back",
            metadata={"dead_letters": count, "max_letters": max_letters},
        )

    return _check(spec, check, asset=asset, name=name)


def _check(spec: AnySpec, check: Any, *, asset: Any, name: str) -> dg.AssetChecksDefinition:
    stream = spec.stream if isinstance(spec, DrainSpec) else spec.topic
    decorate = dg.asset_check(
        asset=asset if asset is not None else stream_asset_key(stream),
        name=f"{name}__{spec.name}",
        blocking=False,
        required_resource_keys={spec.resources.redis},
    )
    return decorate(check)


def _look(context: Any, spec: AnySpec) -> BacklogStats:
    with redis_of(context, spec.resources).connect() as client:
        if isinstance(spec, TopicDrainSpec):
            return topic_backlog(client, spec)
        return peek_backlog(client, stream=spec.stream, group=spec.group, count_limit=COUNT_LIMIT)


def _result(passed: bool, told: str, stats: BacklogStats, limits: dict[str, Any]) -> dg.AssetCheckResult:
    metadata: Metadata | dict[str, Any] = {**backlog_metadata(stats), **limits}
    return dg.AssetCheckResult(
        passed=passed, severity=dg.AssetCheckSeverity.WARN, description=told, metadata=metadata
    )
