"""The JSON shapes of results; docs/cli.md shows them, and scripts rely on them."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from conquiet.masking import mask

if TYPE_CHECKING:
    from conquiet.mq import DeadLetterRecord
    from conquiet.mq.look.stats import GroupStats, TopicStats


def topic_document(stats: TopicStats) -> dict[str, Any]:
    """One topic, or a plain stream."""
    return {
        "name": stats.name,
        "partitions": stats.partitions,
        "length": stats.length,
        "lengths": list(stats.lengths),
        "first_id": stats.first_id,
        "last_id": stats.last_id,
        "created_at_ms": stats.created_at_ms,
        "updated_at_ms": stats.updated_at_ms,
    }


def group_document(group: GroupStats) -> dict[str, Any]:
    """One group, in sum and by partition; a lag that nobody knows is null."""
    return {
        "topic": group.topic,
        "group": group.group,
        "lag": group.lag,
        "pending": group.pending,
        "oldest_undelivered_age_ms": group.oldest_undelivered_age_ms,
        "oldest_pending_age_ms": group.oldest_pending_age_ms,
        "consumers": list(group.consumers),
        "partitions": [asdict(partition) for partition in group.partitions],
    }


def letter_document(letter: DeadLetterRecord) -> dict[str, Any]:
    """One dead letter in full; raw fields as base64, since they need not be text."""
    raw = letter.raw_fields
    return {
        "id": letter.id,
        "topic": letter.topic,
        "group": letter.group,
        "partition": letter.partition,
        "key": letter.key,
        "original_id": letter.original_id,
        "attempts": letter.attempts,
        "first_delivered_at_ms": letter.first_delivered_at_ms,
        "last_delivered_at_ms": letter.last_delivered_at_ms,
        "dead_lettered_at_ms": letter.dead_lettered_at_ms,
        "last_consumer": letter.last_consumer,
        "error_type": letter.error_type,
        # Other writers' letters may hold what an exception said of a URL.
        "error_message": mask(letter.error_message),
        "traceback": mask(letter.traceback),
        "headers": dict(letter.headers),
        "payload": letter.payload,
        "raw_fields_base64": None
        if raw is None
        else [[base64.b64encode(part).decode() for part in pair] for pair in raw],
    }
