"""The JSON shapes of results; docs/cli.md shows them, and scripts rely on them."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from conquiet.masking import mask

if TYPE_CHECKING:
    from conquiet.mq import DeadLetterRecord, StoredMessage
    from conquiet.mq.look.stats import GroupStats, TopicStats


def topic_document(stats: TopicStats) -> dict[str, Any]:
    """One topic, or a plain stream."""
    return {"name": stats.name, "partitions": stats.partitions, "length": stats.length, **asdict(stats)}


def group_document(group: GroupStats) -> dict[str, Any]:
    """One group, in total and by partition; an unknown lag is null."""
    totals = ("lag", "pending", "oldest_undelivered_age_ms", "oldest_pending_age_ms", "consumers")
    return {
        "topic": group.topic,
        "group": group.group,
        **{name: getattr(group, name) for name in totals},
        "partitions": [asdict(partition) for partition in group.partitions],
    }


def letter_document(letter: DeadLetterRecord) -> dict[str, Any]:
    """One dead letter in full; raw fields as base64, since they need not be text."""
    names = [field.name for field in fields(letter) if field.name not in ("raw_fields", "envelope", "size")]
    raw = (
        None
        if letter.raw_fields is None
        else [list(map(base64.b64encode, each)) for each in letter.raw_fields]
    )
    return {
        **{name: getattr(letter, name) for name in names},
        # Other writers' letters may have a URL in the text of an exception.
        "error_message": mask(letter.error_message),
        "traceback": mask(letter.traceback),
        "raw_fields_base64": raw and [[part.decode() for part in pair] for pair in raw],
    }


def message_document(message: StoredMessage) -> dict[str, Any]:
    """One message as JSON."""
    return {
        "id": message.id,
        "partition": message.partition,
        "sent_at_ms": message.sent_at_ms,
        "key": message.key,
        "headers": message.headers,
        "payload": message.payload,
        "problem": message.problem,
        "fields": message.fields,
    }


def shown_payload(message: StoredMessage, limit: int = 200) -> str:
    """A payload in one line, or what is wrong with it."""
    if message.problem is not None:
        return f"malformed: {message.problem}"[:limit]
    text = json.dumps(message.payload, ensure_ascii=False)
    return text if len(text) <= limit else text[:limit] + "…"
