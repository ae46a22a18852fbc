"""Asset checks of the backlog, of its age and of the dead letters; all of them only warn."""

# No `from __future__ import annotations` here: Dagster reads the type of the context.

from collections.abc import Callable
from typing import Any

import dagster as dg

from conquiet.queue import Client
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.specs import AnySpec
from dagster_conquiet.steps.backlog import backlog_of, dead_letter_count
from dagster_conquiet.steps.metadata import backlog_metadata

#: Whether it passed, a sentence, and the metadata.
_Finding = tuple[bool, str, dict[str, Any]]


def build_backlog_check(
    spec: AnySpec, *, max_lag: int, asset: Any = None, name: str = "backlog"
) -> dg.AssetChecksDefinition:
    """Warns if more than `max_lag` messages wait or are pending, or if their number is unknown."""

    def check(client: Client) -> _Finding:
        stats = backlog_of(client, spec)
        waiting = None if stats.lag is None else stats.lag + stats.pending
        number = "an unknown number of" if waiting is None else str(waiting)
        metadata = {**backlog_metadata(stats), "max_lag": max_lag}
        is_passed = waiting is not None and waiting <= max_lag
        return is_passed, f"{number} messages wait or are pending", metadata

    return _build_check(spec, check, asset, name)


def build_freshness_check(
    spec: AnySpec, *, max_age_s: float, asset: Any = None, name: str = "freshness"
) -> dg.AssetChecksDefinition:
    """Warns if a message has waited longer than `max_age_s`: the drained asset is that far behind.

    Freshness by the age of the last run would call an asset stale whose stream is simply quiet.
    """

    def check(client: Client) -> _Finding:
        stats = backlog_of(client, spec)
        age_s = max(stats.oldest_undelivered_age_ms or 0, stats.oldest_pending_age_ms or 0) / 1000
        metadata = {**backlog_metadata(stats), "behind_s": age_s, "max_age_s": max_age_s}
        return age_s <= max_age_s, f"the oldest unfinished message is {age_s:.1f} s old", metadata

    return _build_check(spec, check, asset, name)


def build_dead_letter_check(
    spec: AnySpec, *, max_letters: int = 0, asset: Any = None, name: str = "dead_letters"
) -> dg.AssetChecksDefinition:
    """Warns if there are more than `max_letters` dead letters: only a replay makes them handled again."""

    def check(client: Client) -> _Finding:
        count = dead_letter_count(client, spec)
        metadata = {"dead_letters": count, "max_letters": max_letters}
        return count <= max_letters, f"{count} dead letters; a replay moves them back", metadata

    return _build_check(spec, check, asset, name)


def _build_check(
    spec: AnySpec, check: Callable[[Client], _Finding], asset: Any, name: str
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset if asset is not None else stream_asset_key(spec.source),
        name=f"{name}__{spec.name}",
        blocking=False,
        required_resource_keys={spec.resources.redis},
    )
    def run_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with spec.resources.redis_of(context).connect() as client:
            passed, description, metadata = check(client)
        return dg.AssetCheckResult(
            passed=passed, severity=dg.AssetCheckSeverity.WARN, description=description, metadata=metadata
        )

    return run_check
