"""What each role of docs/security.md does for a living with tasks, as calls of the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from conquiet.operations import diagnose, queue_facts, server_facts
from conquiet.tasks import (
    Beat,
    BeatConfig,
    DirectoryPayloads,
    ProcessDiedError,
    RetryPolicy,
    TaskApp,
    TaskContext,
    TaskEvent,
    TaskFailedError,
    TaskOptions,
    Worker,
    WorkerConfig,
    chain,
    chord,
    group,
)
from conquiet.tasks.control.listing import Where
from conquiet.tasks.keys import GROUP
from conquiet.tasks.rates import Bucket, Rate
from conquiet.tasks.schedules.store import Claim, MessageDelivery, Occurrence, StoredSchedule
from conquiet.tasks.scripts.control import listen
from conquiet.tasks.work import Work
from conquiet.tasks.worker.guard import DeadChild, TaskGuard
from conquiet.tasks.worker.slot import RunningTask
from tests.cli.roles import report_a_loss
from tests.eventually import HANG_S, eventually

QUEUE = "orders"
#: What an orchestrator waits for, by a name that it knows.
WORK = Work(name="bill of order 7")
#: More tasks than its bucket has tokens.
RATE, LIMITED = "20/s", 22


@contextmanager
def app_of(client, *, as_role: bool = False) -> Iterator[TaskApp]:
    """An app with tasks on the client's server, of its user or of one that may do everything."""
    given = client.connection_pool.connection_kwargs
    login = f"{given['username']}:{quote(given['password'], safe='')}@" if as_role else ""
    defaults = TaskOptions(queue=QUEUE, retry=RetryPolicy(base_delay_ms=1, max_delay_ms=5))
    with TaskApp(f"redis://{login}{given['host']}:{given['port']}/0", defaults=defaults) as app:

        @app.task(name="add")
        def add(a: int, b: int = 1) -> int:
            return a + b

        @app.task(name="total")
        def total(numbers: list[int], ctx: TaskContext) -> int:
            ctx.progress(0.5)
            return sum(numbers)

        @app.task(name="limited", rate_limit=RATE)
        def limited(number: int) -> None:
            """Waits for its token."""

        @app.task(name="fail_once")
        def fail_once(ctx: TaskContext) -> int:
            if ctx.attempt == 0:
                raise ValueError("not yet")
            return ctx.attempt

        @app.task(name="fail", max_retries=0)
        def fail(number: int = 0) -> int:
            raise ValueError("never")

        @app.task(name="repeat")
        def repeat(text: str) -> str:
            return text

        yield app


def refusals(client, user: str) -> list[dict]:
    """What the server has refused to the user, but for a greeting that redis-py does without."""
    return [
        entry
        for entry in client.acl_log()
        if entry["username"] == user and entry["object"] not in ("client|setinfo", "client")
    ]


def task_producer(client) -> None:
    """Enqueues one, many, later and once; canvases; finds work that was done; waits for results."""
    with app_of(client) as everybody, app_of(client, as_role=True) as app:
        add, total = app.tasks["add"], app.tasks["total"]
        # Of a priority that nobody has used before.
        urgent = add.with_options(priority=9)
        assert len(urgent.enqueue_many({"a": number} for number in range(20))) == 20
        add.with_options(delay_s=3600).enqueue(1)
        unique = add.with_options(unique_for_s=3600)
        assert unique.enqueue(2).id == unique.enqueue(2).id
        assert WORK.enqueue(app, add.call(6)).result(HANG_S) == 7
        chain(add.call(1), add.partial(2)).enqueue()
        chord([add.call(1), add.call(2)], total.partial()).enqueue()
        assert group(add.call(1), add.call(2)).enqueue().status().left == 2
        handle = add.enqueue(1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(handle.result, HANG_S)
            eventually(lambda: waiting.done() or everybody.client.info("clients")["blocked_clients"])
            everybody.revoke(handle.id, QUEUE)
            assert isinstance(waiting.exception(), TaskFailedError)


def leave_work_done(client) -> None:
    """A task of an orchestrator that a worker has run."""
    with app_of(client) as app, Worker(app, config()):
        assert WORK.enqueue(app, app.tasks["add"].call(6)).result(HANG_S) == 7


def leave_tasks(client) -> None:
    """What a worker meets in its life."""
    with app_of(client) as app:
        add, total, fail = app.tasks["add"], app.tasks["total"], app.tasks["fail"]
        # Read by a worker that is dead.
        add.enqueue(1)
        stream = app.keys(QUEUE).streams[5]
        client.execute_command("XREADGROUP", "GROUP", GROUP, "dead", "STREAMS", stream, ">")
        app.tasks["limited"].enqueue_many({"number": number} for number in range(LIMITED))
        for name in ("fail_once", "fail"):
            app.tasks[name].enqueue()
        # Limited by another rate before, as by workers of an older version.
        app.rate_limiter.delay_ms(Bucket(QUEUE, "limited"), "5:1-1", Rate(1, 10))
        # Of a priority that nobody has used before.
        add.with_options(delay_s=0.05, priority=8).enqueue(1)
        chain(add.call(1), add.with_options(delay_s=0.05).partial(2)).enqueue()
        chain(add.call(1), group(add.partial(1), add.partial(2)), total.partial()).enqueue()
        chain(fail.call(), add.partial()).enqueue()
        chord([add.call(1), fail.call()], total.partial()).enqueue()
        assert add.enqueue(1).revoke().is_revoked


def task_worker(client) -> None:
    """Reads, runs, retries, gives up, takes over, limits, follows canvases, obeys control, and leaves."""
    user = client.connection_pool.connection_kwargs["username"]
    with app_of(client) as everybody, app_of(client, as_role=True) as app:
        keys = app.keys(QUEUE)
        report_a_loss(app.client, keys.streams[5])
        with Worker(app, config()):

            def is_done() -> bool:
                stats = everybody.control.queue(QUEUE)
                left = stats.queued + stats.in_flight + stats.waiting + stats.delayed
                follow_ups = everybody.client.hlen(keys.follow_ups)
                # In its wait for new tasks, and in that for control: to stop wakes it.
                is_idle = everybody.client.info("clients")["blocked_clients"] >= 2
                return not left and not follow_ups and is_idle

            def has_answered() -> bool:
                return None not in everybody.control.ping(timeout_s=0.2).values()

            for is_so in (is_done, has_answered, is_done):
                eventually(lambda: refusals(everybody.client, user) or is_so())  # noqa: B023 -- called here
                assert not refusals(everybody.client, user)
            assert everybody.control.queue(QUEUE).dead_letters == 3
        settle_for_a_dead_child(app)


def settle_for_a_dead_child(app: TaskApp) -> None:
    """As the parent of a process pool does."""
    guard = TaskGuard(app, config(), lambda: ())
    guard.start()
    running = RunningTask("w.1.0.1", QUEUE, 5, "1-1", 1, 0, None)
    guard.died(DeadChild("w.1", running, ProcessDiedError("was killed by signal 9 (SIGKILL)")))
    guard.stop()


def config() -> WorkerConfig:
    return WorkerConfig(
        queues=(QUEUE,), pool="thread", concurrency=1, heartbeat_ttl_s=2.0, max_outage_s=0.2, name="w"
    )


def leave_a_queue(client) -> None:
    """What an administrator finds: dead letters, and tasks in every place."""
    with app_of(client) as app:
        add = app.tasks["add"]
        with Worker(app, config()):
            for handle in app.tasks["fail"].enqueue_many({"number": number} for number in range(4)):
                with suppress(TaskFailedError):
                    handle.result(HANG_S)
        add.enqueue_many({"a": number} for number in range(4))
        stream = app.keys(QUEUE).streams[5]
        client.execute_command("XREADGROUP", "GROUP", GROUP, "other.0.1", "COUNT", 1, "STREAMS", stream, ">")
        add.with_options(delay_s=3600).enqueue(1)
        chain(add.with_options(delay_s=3600).call(1), add.partial()).enqueue()
        for number in range(2):
            app.rate_limiter.delay_ms(Bucket(QUEUE, "limited"), f"5:{number}-0", Rate(1, 3_600_000))


def task_listener(client) -> None:
    """Listens to every queue, and reads more events at once than one call returns."""
    with app_of(client) as everybody, app_of(client, as_role=True) as app:
        with app.events(idle_s=HANG_S) as events:
            handles = everybody.tasks["add"].enqueue_many({"a": number} for number in range(1_500))
            seen = [next(events).id for _ in handles]
        assert seen == [handle.id for handle in handles]


@contextmanager
def listening(client) -> Iterator[list[TaskEvent]]:
    """Somebody who may do everything listens to the queue; what happens there."""
    seen: list[TaskEvent] = []
    with app_of(client) as app, app.events([QUEUE]) as events, ThreadPoolExecutor(1) as pool:
        app.tasks["add"].enqueue(0)
        seen.append(next(events))
        pool.submit(lambda: seen.extend(events))
        try:
            yield seen
        finally:
            events.close()


def store_in(directory: Path) -> Callable[..., None]:
    """What a producer, a worker and an administrator do with arguments above the limit."""

    def work(client) -> None:
        user = client.connection_pool.connection_kwargs["username"]
        with app_of(client) as everybody, app_of(client, as_role=True) as app:
            for one in (everybody, app):
                one.payload_store = DirectoryPayloads(directory)
                one.codec.max_bytes = 2_000
            by = {"task-producer": app}.get(user, everybody)
            handle = by.enqueue("repeat", {"text": "x" * 3_000}, queue=QUEUE)
            by.enqueue("unknown", {"text": "x" * 3_000}, queue=QUEUE)
            with Worker(app if user == "task-worker" else everybody, config()):
                eventually(lambda: everybody.control.queue(QUEUE).dead_letters)
                handle.result(HANG_S)
            if user == "task-admin":
                assert app.control.purge_payloads(queue=QUEUE, older_than_ms=0) == 0
                assert len(app.control.retry_all(queue=QUEUE).retried) == 1

    return work


def task_admin(client) -> None:
    """Asks and stops workers, pauses, limits, lists, revokes, retries and purges dead letters; the doctor."""
    with app_of(client) as everybody, app_of(client, as_role=True) as app:
        control = app.control
        assert app.queues() == [QUEUE]
        pages = {where: control.tasks(QUEUE, where).tasks for where in get_args(Where)}
        assert app.handle(pages["queued"][0].id).status() is not None
        assert [control.revoke(task.id, queue=QUEUE).is_revoked for task in pages["delayed"]] == [True, True]
        assert control.revoke(pages["queued"][0].id, queue=QUEUE).is_revoked
        assert control.queue(QUEUE).dead_letters == 4
        by_task, by_letter, by_retry, _ = pages["dead_lettered"]
        assert control.retry(by_task.id, queue=QUEUE) == control.retry(by_task.id, queue=QUEUE)
        assert control.letter(by_letter.id, queue=QUEUE) is not None
        assert len(control.retry_all(queue=QUEUE, limit=1).retried) == 1
        assert control.purge([by_retry.id], queue=QUEUE) == control.purge(queue=QUEUE, older_than_ms=0) == 1
        facts = queue_facts(app.client, QUEUE)
        assert (facts.in_flight, facts.delayed, facts.left_follow_ups) == (1, 1, 0)
        assert diagnose(server_facts(app.client), queues=[facts])
        with Worker(everybody, config()):
            answers = [
                control.ping(timeout_s=HANG_S),
                control.inspect(timeout_s=HANG_S),
                control.pause(QUEUE, timeout_s=HANG_S),
                control.set_rate("limited", "2/h", queue=QUEUE, timeout_s=HANG_S),
                control.set_rate("limited", None, queue=QUEUE, timeout_s=HANG_S),
                control.reset_rate("limited", queue=QUEUE, timeout_s=HANG_S),
                control.resume(QUEUE, timeout_s=HANG_S),
                control.shutdown(timeout_s=HANG_S),
            ]
        assert not any(None in each.values() for each in answers)


def leave_a_listener(client) -> None:
    """Somebody listens to the queue for longer than the role works."""
    with app_of(client) as app:
        listen(app.client, app.keys(QUEUE), 86_400_000)


def task_beat(client) -> None:
    """Writes, claims, postpones, disables and deletes schedules, and hands over to another beat."""
    with app_of(client, as_role=True) as app:
        # Long ago: due at once. Of a priority that nobody has used before.
        begin: Any = {"at": datetime(2026, 1, 1, tzinfo=UTC), "misfire_grace_s": 3e9}
        app.schedule("once", app.tasks["add"].with_options(priority=7), {"a": 1}, **begin)
        for name in ("unique", "unique too"):
            app.schedule(name, app.tasks["add"].with_options(unique_for_s=3600), {"a": 2}, **begin)
        app.schedule("later", app.tasks["fail_once"], every=3600)
        beat = Beat(app, BeatConfig(name="first"))
        beat.apply_declared()
        report = beat.tick()
        assert (report.claimed, report.errors) == (3, 0)
        store, later = app.schedules.store, app.schedules.get("later").stored
        assert store.claim([_message_claim(later, epoch=1)]) == [True]
        [pending] = store.tick("first", 1, lease_ms=1_000, most=10).pending
        store.confirm([pending.item_id])
        store.release(1)
        assert app.schedules.history("once")[0].is_new
        app.schedules.disable("later")
        app.schedules.enable("later")
        stored = list(app.schedules.stored())
        assert [one.name for one in stored] == ["later", "once", "unique", "unique too"]
        assert Beat(app, BeatConfig(name="second")).tick().is_leading
        assert store.postpone(stored[0], store.stats().epoch, 1_000, "no reason")
        for one in stored:
            app.schedules.delete(one.name)


def _message_claim(stored: StoredSchedule, epoch: int) -> Claim:
    delivery = MessageDelivery(kind="stream", name="any", data=b"{}")
    planned_ms = stored.planned_ms or 0
    return Claim(
        name=stored.name,
        epoch=epoch,
        version=stored.version,
        planned_ms=planned_ms,
        occurrences=[Occurrence(planned_ms=planned_ms, due_ms=planned_ms, id="any", delivery=delivery)],
        skipped=1,
        next_planned_ms=planned_ms + 1,
        next_due_ms=planned_ms + 1,
    )
