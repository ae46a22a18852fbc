"""What must be so of tasks at the end of a run, seen from outside with plain commands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Engine, select

from conquiet.tasks.keys import GROUP, QueueKeys, workers_key
from tests.chaos.plan import effects
from tests.chaos.task_plan import NAMESPACE, QUEUES, WITH_EFFECT
from tests.services import Client

if TYPE_CHECKING:
    from tests.chaos.task_sender import SentTasks

KEYS = [QueueKeys(NAMESPACE, queue) for queue in QUEUES]
_SHOWN = 5
_PAGE = 1_000


class Record(NamedTuple):
    """What Redis says of a task."""

    state: str | None
    error: str | None


def records(client: Client, sent: SentTasks) -> dict[str, Record]:
    """The record of each task."""
    found: dict[str, Record] = {}
    ids = [*sent.tasks]
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        pipeline = client.pipeline(transaction=False)
        for task_id in page:
            keys = QueueKeys(NAMESPACE, sent.tasks[task_id].queue)
            pipeline.hmget(keys.record(task_id), "state", "error")
        found |= {task_id: Record(*reply) for task_id, reply in zip(page, pipeline.execute(), strict=True)}
    return found


def count_rows(engine: Engine) -> Counter[str]:
    """How many effects each task has."""
    with engine.connect() as connection:
        return Counter(connection.execute(select(effects.c.entry_id)).scalars())


def broken(
    sent: SentTasks, found: Mapping[str, Record], rows: Counter[str], letters: Counter[str]
) -> Iterator[str]:
    """Each task succeeded with its effect, or is a dead letter with its reason and without an effect."""
    ids = {
        state: {one for one in found if found[one].state == state} for state in ("succeeded", "dead_lettered")
    }
    succeeded, dead = ids["succeeded"], ids["dead_lettered"]
    with_effect = {one for one, task in sent.tasks.items() if task.name in WITH_EFFECT}
    doomed = {one for one, task in sent.tasks.items() if task.name == "doomed"}
    yield from _some("lost: no record is there", [one for one in found if found[one].state is None])
    yield from _some("that always fail and succeeded", doomed & succeeded)
    yield from _some("dead letters without a reason", [one for one in dead if not found[one].error])
    yield from _some("succeeded without an effect", [one for one in with_effect & succeeded if not rows[one]])
    yield from _some("with more than one effect", [one for one, count in rows.items() if count > 1])
    yield from _some("with an effect and dead letters", [one for one in dead if rows[one]])
    yield from _some("with an effect that were never sent", rows.keys() - sent.tasks.keys())
    yield from _some("with more than one dead letter", [one for one, count in letters.items() if count > 1])
    yield from _some("with a letter that are not dead letters", letters.keys() - dead)
    # What follows on a task that failed has failed without being enqueued.
    first = dead - sent.before.keys()
    yield from _some("dead letters by their record, without a letter", first - letters.keys())
    for last, before in sent.before.items():
        failed = [one for one in before if one in dead]
        if last in succeeded and failed:
            yield f"{last} ran although {failed} failed"
        if last in dead and not failed and last not in letters:
            yield f"{last} failed although nothing before it did: {found[last].error}"


def left_to_do(client: Client) -> Iterator[str]:
    """What is left to do, by queue."""
    for keys in KEYS:
        for stream, waiting in zip(keys.streams, keys.waiting, strict=True):
            if count := client.xlen(stream):
                yield f"{stream} has {count} entries, {client.zcard(waiting)} of them waiting"
        if count := client.zcard(keys.delayed):
            yield f"{keys.delayed} has {count} tasks"
        if count := client.hlen(keys.follow_ups):
            yield f"{keys.follow_ups} has {count} of what is to follow"


def count_backlog(client: Client) -> int:
    """How many tasks are enqueued and not finished."""
    return sum(
        sum(client.xlen(stream) for stream in keys.streams) + client.zcard(keys.delayed) for keys in KEYS
    )


def progress(client: Client) -> tuple[int, ...]:
    """What changes while workers work."""
    last = [client.xinfo_stream(keys.events)["entries-added"] for keys in KEYS if client.exists(keys.events)]
    return count_backlog(client), *last


def dead_letters(client: Client) -> Counter[str]:
    """How many letters each task has."""
    letters = [fields for keys in KEYS for _, fields in client.xrange(keys.dead_letters)]
    return Counter(json.loads(fields["data"])["originalMessageId"] for fields in letters)


def left_behind(client: Client, *, killed: Collection[str]) -> Iterator[str]:
    """What workers that left in peace must not leave in Redis; of those that were killed it expires."""
    now_ms = client.time()[0] * 1000
    for key in (*(keys.heartbeats for keys in KEYS), workers_key(NAMESPACE)):
        alive = client.zrangebyscore(key, now_ms, "+inf")
        # A name, or a description with the name in it.
        if left := [one for one in alive if not any(name in one for name in killed)]:
            yield f"{key} has {left}"
    for stream in (stream for keys in KEYS for stream in keys.streams if client.exists(stream)):
        pending = [info["name"] for info in client.xinfo_consumers(stream, GROUP) if info["pending"]]
        if pending:
            yield f"{stream} has entries pending at {pending}"


def _some(problem: str, ids: Collection[str]) -> Iterator[str]:
    if ids:
        shown = ", ".join(sorted(ids)[:_SHOWN])
        yield f"{len(ids)} tasks {problem}: {shown}{' …' if len(ids) > _SHOWN else ''}"
