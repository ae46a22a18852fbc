"""Occurrences as items of the outbox: claimed, and not delivered yet."""

from __future__ import annotations

from collections.abc import Sequence

from conquiet.queue.connection import as_text
from conquiet.queue.lua import Argument
from conquiet.tasks.schedules.store import (
    Delivery,
    MessageDelivery,
    PendingOccurrence,
    TaskDelivery,
    UnreadableDelivery,
)
from conquiet.tasks.scripts.enqueue import NewTask


def item_of(delivery: Delivery) -> list[Argument]:
    """Names and values in turn; what is of the schedule, and the sequence, are added by the script."""
    if isinstance(delivery, MessageDelivery):
        return ["kind", delivery.kind, "name", delivery.name, "data", delivery.data]
    task = delivery.task
    return [
        *("kind", "task", "name", task.name, "queue", delivery.queue, "priority", task.priority),
        *("recordTtlMs", task.record_ttl_ms, "uniqueForMs", task.unique_for_ms),
        *("uniqueDigest", task.unique_digest, "data", task.data),
    ]


def pending_of(item_id: bytes, values: Sequence[bytes]) -> PendingOccurrence:
    """The occurrence of an item; of one that cannot be read, its schedule and why."""
    try:
        return _occurrence(item_id, values)
    except (KeyError, ValueError) as error:
        named = dict(zip(values[::2], values[1::2], strict=False))
        return PendingOccurrence(
            item_id=as_text(item_id),
            sequence=0,
            schedule=as_text(named.get(b"schedule", b"")),
            planned_ms=0,
            id="",
            delivery=UnreadableDelivery(f"item {as_text(item_id)} of the outbox cannot be read: {error!r}"),
        )


def _occurrence(item_id: bytes, values: Sequence[bytes]) -> PendingOccurrence:
    fields = {as_text(name): value for name, value in zip(values[::2], values[1::2], strict=True)}
    text = {name: as_text(value) for name, value in fields.items() if name != "data"}
    delivery: Delivery
    if text["kind"] == "task":
        task = NewTask(
            id=text["id"],
            name=text["name"],
            data=fields["data"],
            priority=int(text["priority"]),
            record_ttl_ms=int(text["recordTtlMs"]),
            unique_for_ms=int(text["uniqueForMs"]),
            unique_digest=text["uniqueDigest"],
        )
        delivery = TaskDelivery(text["queue"], task)
    elif text["kind"] in ("stream", "topic"):
        delivery = MessageDelivery(kind=text["kind"], name=text["name"], data=fields["data"])
    else:
        raise ValueError(f"its kind is {text['kind']!r}")
    return PendingOccurrence(
        item_id=as_text(item_id),
        sequence=int(text["sequence"]),
        schedule=text["schedule"],
        created_ms=int(text.get("created", 0)),
        planned_ms=int(text["planned"]),
        id=text["id"],
        delivery=delivery,
    )
