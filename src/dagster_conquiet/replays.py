"""Dead letters, back to where they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from conquiet.consume import quarantine_stream
from conquiet.mq import DeadLetters, ReplayReport, Topics
from conquiet.queue import Client, StreamWriter
from dagster_conquiet.config import ReplayConfig
from dagster_conquiet.replies import entries
from dagster_conquiet.specs import DrainSpec

_PAGE = 100


def replay_topic(client: Client, topic: str, config: ReplayConfig) -> ReplayReport:
    """Replay letters of a topic, each to its partition and for its group."""
    which: dict[str, Any] = {"error_type": config.error_type, "group": config.group}
    return DeadLetters(Topics(client).open(topic)).replay_all(
        limit=config.limit,
        dry_run=config.dry_run,
        per_second=config.per_second,
        **{name: value for name, value in which.items() if value is not None},
    )


def replay_quarantined(client: Client, spec: DrainSpec, config: ReplayConfig) -> ReplayReport:
    """Add the messages in the stream's quarantine to the stream again; those that are no message stay.

    A letter is added once and then deleted: a replay that dies in between adds nothing a second time.
    """
    writer = StreamWriter(client, spec.stream)
    source = quarantine_stream(spec.stream)
    replayed, refused = 0, []
    for letter_id, payload in _letters(client, source):
        if replayed == config.limit:
            break
        if payload is None:
            refused.append(letter_id)
            continue
        if not config.dry_run:
            writer.enqueue_once([payload], dedupe_id=f"replay.{letter_id}")
            client.xdel(source, letter_id)
        replayed += 1
    return ReplayReport(replayed=replayed, gone=(), refused=tuple(refused), is_dry_run=config.dry_run)


def _letters(client: Client, source: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    # The end is fixed before: what fails at once again would be replayed for ever.
    newest = entries(client.xrevrange(source, count=1))
    start = "-"
    while newest and (page := entries(client.xrange(source, start, newest[0][0], count=_PAGE))):
        for letter_id, letter in page:
            yield letter_id, _message_in(letter or {})
        start = f"({page[-1][0]}"


def _message_in(letter: dict[str, Any]) -> dict[str, Any] | None:
    if "payloadJson" in letter:
        return json.loads(letter["payloadJson"])  # type: ignore[no-any-return]  # written by `quarantine`
    return letter.get("payload")
