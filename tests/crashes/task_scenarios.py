"""The scenarios of the task layer: enqueue, run, retry, dead letter, take-over, canvases, dead children."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from conquiet.queue.connection import as_text, run_command
from conquiet.tasks import chain, chord, group, scripts
from conquiet.tasks.worker.slot import RunningTask
from tests.crashes.task_explorer import TaskScenario
from tests.crashes.task_site import CONSUMER, TaskSite

#: Above the limit of the app.
_LARGE = "x" * 1_100_000


def nothing(_site: TaskSite) -> None:
    """Empty queues."""


def enqueue_three(site: TaskSite) -> None:
    """Unique tasks, one of them delayed, enqueued again after an error as well as after a crash."""
    unique = site.effect.with_options(unique_for_s=3_600)
    for name, options in (("a", {}), ("b", {"delay_s": 0.001}), ("c", {"priority": 9})):
        unique.with_options(**options).enqueue(name=name)


def three(site: TaskSite) -> None:
    """Three tasks."""
    site.effect.enqueue_many({"name": name} for name in "abc")


def one_that_fails_once(site: TaskSite) -> None:
    """The first of two fails at its first attempt."""
    site.effect.enqueue(name="a", fails=1)
    site.effect.enqueue(name="b")


def one_that_never_succeeds(site: TaskSite) -> None:
    """One that fails for good, one that no worker knows, and a good one."""
    site.never.enqueue()
    site.app.enqueue("unknown")
    site.effect.enqueue(name="a")


def two_delayed(site: TaskSite) -> None:
    """Tasks that are due."""
    for name in "ab":
        site.effect.with_options(delay_s=0.001).enqueue(name=name)
    time.sleep(0.002)


def three_read_by_the_dead(site: TaskSite) -> None:
    """A worker has read three and died."""
    three(site)
    keys = site.app.keys("default")
    scripts.settle_and_read(site.app.client, keys, "dead", (), count=3, max_bytes=1 << 20)


def one_that_stops_the_worker(site: TaskSite) -> None:
    """The worker is stopped while it runs the first of its batch."""
    site.effect.enqueue(name="a", stops=True)
    site.effect.enqueue(name="b")


def a_chain(site: TaskSite) -> None:
    """Two steps."""
    chain(site.effect.call(name="a"), site.after.partial()).enqueue()


def a_chord(site: TaskSite) -> None:
    """Two members, the body in another queue, and a step behind it."""
    members = [site.effect.call(name=name) for name in "ab"]
    chain(chord(members, site.join.partial()), site.after.partial()).enqueue()


def a_chord_with_a_delayed_body(site: TaskSite) -> None:
    """The body is due a moment after its last member."""
    body = site.join.with_options(delay_s=0.001).partial()
    chord([site.effect.call(name=name) for name in "ab"], body).enqueue()


def enqueue_a_chord(site: TaskSite) -> None:
    """Enqueued again with its id, after an error as well as after a crash."""
    members = [site.effect.call(name=name) for name in "ab"]
    chain(chord(members, site.join.partial()), site.after.partial()).enqueue(id="bill")


def enqueue_a_group(site: TaskSite) -> None:
    """One of its members is a chain that ends with a group."""
    inner = chain(site.effect.call(name="b"), group(site.after.partial()))
    group(site.effect.call(name="a"), inner).enqueue(id="bills")


def one_that_may_be_tried_once(site: TaskSite) -> None:
    """It has a session, and no second attempt."""
    site.only_once.enqueue(name="a")


def two_of_a_dead_child(site: TaskSite) -> None:
    """A child has begun the first one and reserved the second, and died."""
    site.effect.enqueue_many({"name": name} for name in "ab")
    keys = site.app.keys("default")
    scripts.heartbeat(site.app.client, keys, [CONSUMER], 3_600_000)
    scripts.settle_and_read(site.app.client, keys, CONSUMER, (), count=2, max_bytes=1 << 20)


def settle_what_the_child_ran(site: TaskSite) -> None:
    """What its parent does; again under another name after an error."""
    keys = site.app.keys("default")
    command = ("XRANGE", keys.streams[5], "-", "+", "COUNT", 1)
    [entry] = run_command(site.app.client, *command, stream=keys.prefix, group=None)
    running = RunningTask(CONSUMER, "default", 5, as_text(entry[0]), 1, time.time_ns() // 1_000_000, None)
    site.settle_as_parent(running)


def settle_and_work(site: TaskSite) -> None:
    """Settle, then work."""
    settle_what_the_child_ran(site)
    work(site)


def work_as_child(site: TaskSite) -> None:
    """Some rounds of a child of the process pool."""
    site.work_as_child(6)


def a_chord_that_fails(site: TaskSite) -> None:
    """One member fails for good: neither the body nor the step behind it runs, and both have failed."""
    members = [site.effect.call(name="a"), site.never.call()]
    chain(chord(members, site.join.partial()), site.after.partial()).enqueue()


def limited(site: TaskSite) -> None:
    """One task more than the rate lets begin at once."""
    site.effect.with_options(rate_limit="4/s").enqueue_many({"name": name} for name in "abcde")


def two_to_revoke(site: TaskSite) -> None:
    """One task to run; one that is queued and one that is delayed, which will be revoked."""
    site.effect.enqueue(name="a")
    handles = [site.effect.enqueue(name="b"), site.effect.with_options(delay_s=3_600).enqueue(name="c")]
    site.app.client.rpush(_remembered(site), *(handle.id for handle in handles))


def revoke_both(site: TaskSite) -> None:
    """Revoked again after an error as well as after a crash."""
    for task_id in _remembered_ids(site):
        site.app.revoke(task_id, "default")


def revoke_both_and_work(site: TaskSite) -> None:
    """Revoke, then work."""
    revoke_both(site)
    work(site)


def a_dead_letter(site: TaskSite) -> None:
    """A task that was given up."""
    handle = site.never.enqueue()
    site.app.client.rpush(_remembered(site), handle.id)
    work(site)


def retry_the_letter(site: TaskSite) -> None:
    """Retried again after an error as well as after a crash."""
    site.app.control.retry(_remembered_ids(site)[0], queue="default")


def retry_the_letter_and_work(site: TaskSite) -> None:
    """Retry the letter, then work."""
    retry_the_letter(site)
    work(site)


def _remembered(site: TaskSite) -> str:
    return f"{site.app.namespace}:remembered"


def _remembered_ids(site: TaskSite) -> list[str]:
    key = _remembered(site)
    # A lost answer is a `QueueError` here too, as for any caller.
    reply = run_command(site.app.client, "LRANGE", key, 0, -1, stream=key, group=None)
    return [as_text(task_id) for task_id in reply]


def enqueue_large(site: TaskSite) -> None:
    """Arguments above the limit, enqueued again after an error as well as after a crash."""
    site.large.with_options(unique_for_s=3_600).enqueue(text=_LARGE)


def a_large_chain(site: TaskSite) -> None:
    """Arguments and results above the limit, passed on."""
    chain(site.large.call(text=_LARGE), site.after.partial()).enqueue()


def a_large_dead_letter(site: TaskSite) -> None:
    """A task with arguments above the limit that was given up."""
    handle = site.app.enqueue("large_unknown", {"text": _LARGE})
    site.app.client.rpush(_remembered(site), handle.id)
    work(site)


def work(site: TaskSite) -> None:
    """Some rounds of a worker."""
    site.work_rounds(6)


def take_over_and_work(site: TaskSite) -> None:
    """A worker that takes over from a dead one, and works."""
    site.take_over("dead")
    site.work_rounds(4)


def two_priorities(site: TaskSite) -> None:
    """The highest and the lowest one are in use."""
    for name, priority in (("a", 9), ("b", 0)):
        site.effect.with_options(priority=priority).enqueue(name=name)


def enqueue_of_both(site: TaskSite) -> None:
    """Unique tasks of both, enqueued again after an error as well as after a crash."""
    for name, priority in (("c", 0), ("d", 9), ("e", 9)):
        site.effect.with_options(priority=priority, unique_for_s=3_600).enqueue(name=name)


def work_while_both_come(site: TaskSite) -> None:
    """A worker that has found nothing, and whose wait then finds one of each priority."""

    def enqueue() -> None:
        enqueue_of_both(site)
        site.before_wait = lambda: None

    site.before_wait = enqueue
    work(site)


def _each(names: str) -> Counter[str]:
    return Counter(names.split())


TASK_SCENARIOS: dict[str, TaskScenario] = {
    "task_enqueue": TaskScenario(
        prepare=nothing,
        run=enqueue_three,
        recover=enqueue_three,
        effects=_each("a b c"),
        states=Counter(succeeded=3),
    ),
    "task_run": TaskScenario(prepare=three, run=work, effects=_each("a b c"), states=Counter(succeeded=3)),
    "task_retry": TaskScenario(
        prepare=one_that_fails_once, run=work, effects=_each("a b"), states=Counter(succeeded=2)
    ),
    "task_dead_letter": TaskScenario(
        prepare=one_that_never_succeeds,
        run=work,
        effects=_each("a"),
        states=Counter(succeeded=1, dead_lettered=2),
    ),
    "task_delayed": TaskScenario(
        prepare=two_delayed, run=work, effects=_each("a b"), states=Counter(succeeded=2)
    ),
    "task_rate": TaskScenario(
        prepare=limited, run=work, effects=_each("a b c d e"), states=Counter(succeeded=5)
    ),
    "task_revoke": TaskScenario(
        prepare=two_to_revoke,
        run=revoke_both_and_work,
        recover=revoke_both,
        effects=_each("a"),
        states=Counter(succeeded=1, revoked=2),
    ),
    "task_retry_dead_letter": TaskScenario(
        prepare=a_dead_letter,
        run=retry_the_letter_and_work,
        recover=retry_the_letter,
        effects=_each(""),
        states=Counter(dead_lettered=2),
    ),
    "task_wait": TaskScenario(
        prepare=two_priorities,
        run=work_while_both_come,
        recover=enqueue_of_both,
        effects=_each("a b c d e"),
        states=Counter(succeeded=5),
    ),
    "task_take_over": TaskScenario(
        prepare=three_read_by_the_dead,
        run=take_over_and_work,
        effects=_each("a b c"),
        states=Counter(succeeded=3),
    ),
    "task_stop": TaskScenario(
        prepare=one_that_stops_the_worker, run=work, effects=_each("a b"), states=Counter(succeeded=2)
    ),
    "task_chain": TaskScenario(
        prepare=a_chain, run=work, effects=_each("a after"), states=Counter(succeeded=2)
    ),
    "task_chord": TaskScenario(
        prepare=a_chord, run=work, effects=_each("a b join after"), states=Counter(succeeded=4)
    ),
    "task_chord_delayed": TaskScenario(
        prepare=a_chord_with_a_delayed_body, run=work, effects=_each("a b join"), states=Counter(succeeded=3)
    ),
    "task_chord_fails": TaskScenario(
        prepare=a_chord_that_fails,
        run=work,
        effects=_each("a"),
        states=Counter(succeeded=1, dead_lettered=3),
    ),
    "task_enqueue_chord": TaskScenario(
        prepare=nothing,
        run=enqueue_a_chord,
        recover=enqueue_a_chord,
        effects=_each("a b join after"),
        states=Counter(succeeded=4),
    ),
    "task_enqueue_group": TaskScenario(
        prepare=nothing,
        run=enqueue_a_group,
        recover=enqueue_a_group,
        effects=_each("a b after"),
        # The group at the end of the chain is gathered.
        states=Counter(succeeded=4),
    ),
    "task_enqueue_large": TaskScenario(
        prepare=nothing,
        run=enqueue_large,
        recover=enqueue_large,
        effects=Counter(["large x"]),
        states=Counter(succeeded=1),
    ),
    "task_large": TaskScenario(
        prepare=enqueue_large,
        run=work,
        effects=Counter(["large x"]),
        states=Counter(succeeded=1),
    ),
    "task_large_chain": TaskScenario(
        prepare=a_large_chain,
        run=work,
        effects=Counter(["large x", "after"]),
        states=Counter(succeeded=2),
    ),
    "task_large_dead_letter": TaskScenario(
        prepare=a_large_dead_letter,
        run=retry_the_letter_and_work,
        recover=retry_the_letter,
        effects=_each(""),
        states=Counter(dead_lettered=2),
    ),
    "task_child": TaskScenario(
        prepare=one_that_fails_once,
        run=work_as_child,
        effects=_each("a b"),
        states=Counter(succeeded=2),
        is_child=True,
    ),
    "task_child_dead_letter": TaskScenario(
        prepare=one_that_never_succeeds,
        run=work_as_child,
        effects=_each("a"),
        states=Counter(succeeded=1, dead_lettered=2),
        is_child=True,
    ),
    "task_child_only_attempt": TaskScenario(
        prepare=one_that_may_be_tried_once,
        run=work_as_child,
        effects=_each("a"),
        states=Counter(succeeded=1),
        # It was killed in its only attempt.
        or_else=(_each(""), Counter(dead_lettered=1)),
        is_child=True,
    ),
    "task_child_chord": TaskScenario(
        prepare=a_chord,
        run=work_as_child,
        effects=_each("a b join after"),
        states=Counter(succeeded=4),
        is_child=True,
    ),
    "task_child_parent": TaskScenario(
        prepare=two_of_a_dead_child, run=settle_and_work, effects=_each("a b"), states=Counter(succeeded=2)
    ),
}

#: The same again with `async def` tasks that take an `AsyncSession`.
TASK_SCENARIOS |= {
    f"{name}_async": replace(TASK_SCENARIOS[name], is_async=True)
    for name in ("task_run", "task_retry", "task_stop", "task_take_over", "task_child_only_attempt")
}
