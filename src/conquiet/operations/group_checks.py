"""The doctor's judgements of groups and consumers."""

from __future__ import annotations

from collections.abc import Iterator

from conquiet.operations.facts import GroupFacts, TopicFacts
from conquiet.operations.findings import Finding

#: A consumer that has not been heard for so long and holds messages counts as dead.
DEAD_AFTER_MS = 5 * 60_000
OLD_PENDING_MS = 60 * 60_000
_MANY_EMPTY_CONSUMERS = 20
_LONG_STREAM = 100_000


def check_topic(topic: TopicFacts) -> list[Finding]:
    """Every check of one topic or stream; one that is content says so."""
    found = [*_check_dead_letters(topic), *_check_length(topic)]
    for group in topic.groups:
        found += _check_group(topic, group)
    if not found:
        groups = f"{len(topic.groups)} group{'s' if len(topic.groups) != 1 else ''}"
        found.append(Finding(level="ok", check="groups", subject=topic.name, text=f"{groups}, all well"))
    return found


def _check_dead_letters(topic: TopicFacts) -> Iterator[Finding]:
    if topic.dead_letters:
        yield Finding(
            level="warning",
            check="dead-letters",
            subject=topic.name,
            text=f"{topic.dead_letters} dead letters wait for somebody to look at them",
            to_do=f"conquiet dlq list {topic.name}; then dlq replay or dlq purge.",
        )


def _check_length(topic: TopicFacts) -> Iterator[Finding]:
    if not topic.groups and topic.length:
        yield Finding(
            level="note",
            check="groups",
            subject=topic.name,
            text=f"{topic.length} messages and no group: nobody reads them",
            to_do="Start a consumer; a new group begins with the first message.",
        )
    waiting = max((group.pending + (group.lag or 0) for group in topic.groups), default=topic.length)
    if topic.length > _LONG_STREAM and topic.length > 2 * waiting and not topic.has_retention:
        yield Finding(
            level="warning",
            check="retention",
            subject=topic.name,
            text=f"{topic.length} entries are kept and at most {waiting} needed: memory grows for ever",
            to_do=f"conquiet trim {topic.name} --keep 10000, regularly; or a retention policy.",
        )


def _check_group(topic: TopicFacts, group: GroupFacts) -> Iterator[Finding]:
    subject = f"{topic.name}/{group.name}"
    yield from _check_dead_consumers(topic, group, subject)
    if group.oldest_pending_age_ms is not None and group.oldest_pending_age_ms > OLD_PENDING_MS:
        yield Finding(
            level="warning",
            check="old-pending",
            subject=subject,
            text=f"the oldest pending message is {_hours(group.oldest_pending_age_ms)} old",
            to_do=f"conquiet pending {topic.name} --group {group.name} shows who holds it.",
        )
    if group.lag is None:
        yield Finding(
            level="warning",
            check="lag",
            subject=subject,
            text="the lag is not known: entries were deleted, or there are too many to count",
            to_do="Do not read it as zero. It is known again when the group reaches the stream's end.",
        )
    elif group.lag and not group.consumers:
        yield Finding(
            level="warning",
            check="lag",
            subject=subject,
            text=f"{group.lag} messages wait and the group has no consumer",
            to_do="Start one, or delete a group that is not needed: it keeps entries from being trimmed.",
        )
    empty = [one for one in group.consumers if not one.pending and _is_silent(one.idle_ms, one.name, group)]
    if len(empty) >= _MANY_EMPTY_CONSUMERS:
        yield Finding(
            level="note",
            check="consumers",
            subject=subject,
            text=f"{len(empty)} consumers are gone, and the group still knows them",
            to_do=f"conquiet consumers prune {topic.name} --group {group.name}",
        )


def _check_dead_consumers(topic: TopicFacts, group: GroupFacts, subject: str) -> Iterator[Finding]:
    for consumer in group.consumers:
        if consumer.pending and _is_silent(consumer.idle_ms, consumer.name, group):
            yield Finding(
                level="warning",
                check="dead-consumer",
                subject=subject,
                text=f"consumer {consumer.name} holds {consumer.pending} messages and was last heard "
                f"{_hours(consumer.idle_ms)} ago",
                to_do="The next owner of its partition takes them over; on a plain stream: "
                f"conquiet claim-stale {topic.name} --group {group.name} --handler …",
            )


def _is_silent(idle_ms: int, name: str, group: GroupFacts) -> bool:
    return idle_ms > DEAD_AFTER_MS and name not in group.live


def _hours(milliseconds: int) -> str:
    minutes = milliseconds // 60_000
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
