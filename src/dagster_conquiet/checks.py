"""Asset checks of the backlog, its age and growth, of freshness and of the dead letters."""

# No `from __future__ import annotations` here: Dagster reads the type of the context.

from collections.abc import Callable
from typing import Any

import dagster as dg

from conquiet.queue import BacklogStats, Client
from dagster_conquiet.asset_keys import stream_asset_key
from dagster_conquiet.specs import AnySpec
from dagster_conquiet.steps.backlog import backlog_of, dead_letter_count
from dagster_conquiet.steps.committed import committed_of
from dagster_conquiet.steps.metadata import backlog_metadata, definition_metadata, lag_value, page_link

#: Whether it passed, a sentence, and the metadata.
_Finding = tuple[bool, str, dict[str, Any]]
_Check = Callable[[Client, dg.AssetCheckExecutionContext], _Finding]


def build_backlog_check(
    spec: AnySpec, *, max_lag: int, name: str = "backlog", **options: Any
) -> dg.AssetChecksDefinition:
    """Fails if more than `max_lag` messages wait or are pending, or if their number is unknown.

    `options` of every check: `asset` (the stream's unless given), `severity` (WARN), `blocking` (false),
    `description`, `automation_condition`, and the others of `@asset_check`.

    Examples:
        >>> check = build_backlog_check(orders, asset="bills", max_lag=1_000)
    """

    def check(client: Client, _context: dg.AssetCheckExecutionContext) -> _Finding:
        stats = backlog_of(client, spec)
        waiting = _unfinished(stats)
        number = "an unknown number of" if waiting is None else str(waiting)
        metadata = {**backlog_metadata(stats), "max_lag": max_lag}
        is_passed = waiting is not None and waiting <= max_lag
        return is_passed, f"{number} messages wait or are pending", metadata

    about = f"At most {max_lag} messages of {spec.source!r} wait or are pending for {spec.group!r}."
    return _build_check(spec, check, name, about, options)


def build_oldest_age_check(
    spec: AnySpec, *, max_age_s: float, name: str = "oldest_age", **options: Any
) -> dg.AssetChecksDefinition:
    """Fails if a message has waited, or has been pending, for longer than `max_age_s`: also a single one.

    Examples:
        >>> check = build_oldest_age_check(orders, max_age_s=3_600)
    """

    def check(client: Client, _context: dg.AssetCheckExecutionContext) -> _Finding:
        stats = backlog_of(client, spec)
        age_s = max(stats.oldest_undelivered_age_ms or 0, stats.oldest_pending_age_ms or 0) / 1000
        metadata = {**backlog_metadata(stats), "oldest_s": age_s, "max_age_s": max_age_s}
        return age_s <= max_age_s, f"the oldest unfinished message is {age_s:.1f} s old", metadata

    about = f"No message of {spec.source!r} waits for {spec.group!r} for more than {max_age_s:g} s."
    return _build_check(spec, check, name, about, options)


def build_freshness_check(
    spec: AnySpec, *, max_age_s: float, name: str = "freshness", **options: Any
) -> dg.AssetChecksDefinition:
    """Fails if messages newer than the newest committed one have waited for more than `max_age_s`.

    A quiet stream is fresh, and so is one where a single message fails while newer ones are handled;
    freshness by the age of the last run would call the first one stale.

    Examples:
        >>> check = build_freshness_check(orders, max_age_s=600)
    """

    def check(client: Client, _context: dg.AssetCheckExecutionContext) -> _Finding:
        committed = committed_of(client, spec)
        behind_s = committed.behind_ms / 1000
        metadata: dict[str, Any] = {"behind_s": behind_s, "max_age_s": max_age_s}
        if committed.newest_ms is not None:
            metadata["newest_committed_id"] = committed.newest_id
            metadata["newest_committed"] = dg.MetadataValue.timestamp(committed.newest_ms / 1000)
        text = f"messages newer than the newest committed one have waited for {behind_s:.1f} s"
        return behind_s <= max_age_s, text if behind_s else "nothing newer waits", metadata

    about = f"{spec.group!r} is at most {max_age_s:g} s behind {spec.source!r}."
    return _build_check(spec, check, name, about, options)


def build_lag_growth_check(
    spec: AnySpec, *, max_growth: int, name: str = "lag_growth", **options: Any
) -> dg.AssetChecksDefinition:
    """Fails if more than `max_growth` messages more wait or are pending than when it was evaluated last.

    Examples:
        >>> check = build_lag_growth_check(orders, max_growth=1_000)
    """

    def check(client: Client, context: dg.AssetCheckExecutionContext) -> _Finding:
        stats = backlog_of(client, spec)
        waiting, before = _unfinished(stats), _last_value(context, "unfinished")
        metadata = {**backlog_metadata(stats), "unfinished": lag_value(waiting), "max_growth": max_growth}
        if waiting is None or before is None:
            return waiting is not None, f"{lag_value(waiting).value} messages, not compared yet", metadata
        grown = waiting - before
        return grown <= max_growth, f"{grown:+} messages since the last check", metadata | {"grown": grown}

    about = f"The backlog of {spec.source!r} for {spec.group!r} grows by at most {max_growth} between checks."
    return _build_check(spec, check, name, about, options)


def build_dead_letter_check(
    spec: AnySpec, *, max_letters: int = 0, name: str = "dead_letters", **options: Any
) -> dg.AssetChecksDefinition:
    """Fails if there are more than `max_letters` dead letters: only a replay makes them handled again.

    Examples:
        >>> check = build_dead_letter_check(orders)
    """

    def check(client: Client, _context: dg.AssetCheckExecutionContext) -> _Finding:
        count = dead_letter_count(client, spec)
        metadata = {"dead_letters": count, "max_letters": max_letters}
        return count <= max_letters, f"{count} dead letters; a replay moves them back", metadata

    about = f"At most {max_letters} messages of {spec.source!r} are dead letters."
    return _build_check(spec, check, name, about, options)


def _unfinished(stats: BacklogStats) -> int | None:
    return None if stats.lag is None else stats.lag + stats.pending


def _last_value(context: dg.AssetCheckExecutionContext, name: str) -> int | None:
    """What the evaluation before this one had in its metadata."""
    (key,) = context.op_execution_context.selected_asset_check_keys
    storage = context.instance.event_log_storage
    for record in storage.get_asset_check_execution_history(key, limit=10):
        evaluation = (
            record.event and record.event.dagster_event and record.event.dagster_event.event_specific_data
        )
        metadata = getattr(evaluation, "metadata", None) or {}
        if name in metadata and isinstance(metadata[name].value, int):
            return int(metadata[name].value)
    return None


def _build_check(
    spec: AnySpec, check: _Check, name: str, description: str, options: dict[str, Any]
) -> dg.AssetChecksDefinition:
    severity = options.pop("severity", dg.AssetCheckSeverity.WARN)
    asset = options.pop("asset", None)
    defaults: dict[str, Any] = {
        "blocking": False,
        "description": description,
        "metadata": definition_metadata(spec),
    }

    def run_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        redis_streams = spec.resources.redis_of(context)
        with redis_streams.connect() as client:
            passed, finding, metadata = check(client, context)
        metadata |= page_link(spec.source)
        return dg.AssetCheckResult(passed=passed, severity=severity, description=finding, metadata=metadata)

    decorate = dg.asset_check(
        asset=asset if asset is not None else stream_asset_key(spec.source),
        name=f"{name}__{spec.name}",
        required_resource_keys={spec.resources.redis},
        **(defaults | options),
    )
    return decorate(run_check)
