"""The replay: dead letters of a stream or topic, back to where they came from."""

from __future__ import annotations

from typing import Any

from conquiet.mq import DeadLetters, ReplayReport, Topics
from conquiet.queue import Client
from dagster_conquiet.config import ReplayConfig
from dagster_conquiet.specs import AnySpec


def replay_dead_letters(client: Client, spec: AnySpec, config: ReplayConfig) -> ReplayReport:
    """Replay the letters that the config selects, oldest first."""
    which: dict[str, Any] = {"error_type": config.error_type, "group": config.group}
    return DeadLetters(Topics(client).open(spec.source)).replay_all(
        limit=config.limit,
        dry_run=config.dry_run,
        per_second=config.per_second,
        to_all_groups=config.to_all_groups,
        **{name: value for name, value in which.items() if value is not None},
    )
