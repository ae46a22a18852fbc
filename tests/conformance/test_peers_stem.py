"""The holes of a task queue on Redis Streams, S1 to S15 of docs/holes.md, each by a test that names it."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import redis

from conquiet import EmbeddedServer
from conquiet.tasks import Task, TaskApp, TaskContext, TaskOptions, Worker, WorkerConfig, chord, scripts
from conquiet.tasks.control.listing import TaskListing
from conquiet.tasks.keys import GROUP, control_key
from tests.cli.processes import running
from tests.eventually import eventually
from tests.services import Client
from tests.with_redis.tasks.conftest import QUICK, StartWorker
from tests.with_redis.tasks.test_inspection import fail, pages
from tests.with_redis.test_urls import sentinel

__all__ = ["sentinel"]  # a fixture

PATIENCE_S = 600.0
ROOT = Path(__file__).parents[2]


@contextmanager
def watched(client: Client) -> Iterator[list[list[str]]]:
    """What the server did during the block, step by step: one command, or all that one script did."""
    steps: list[list[str]] = []
    end = uuid.uuid4().hex
    with client.monitor() as monitor:
        yield steps
        client.echo(end)
        is_script = False
        while end not in (seen := monitor.next_command())["command"]:
            if is_script and seen["client_type"] == "lua":
                steps[-1].append(seen["command"])
            else:
                steps.append([seen["command"]])
            is_script = seen["client_type"] == "lua"


def read_as(app: TaskApp, consumer: str, count: int) -> list[scripts.Taken]:
    """Read tasks under the name of a consumer."""
    keys = app.keys("default")
    return list(
        scripts.settle_and_read(app.client, keys, consumer, (), count=count, max_bytes=1 << 24).entries
    )


# S1: "extending" a lease acks the message and adds a copy.


def test_s1_a_long_task_is_not_copied_when_its_lease_is_renewed(app: TaskApp, start: StartWorker) -> None:
    begun: list[str] = []
    may_end = threading.Event()

    @app.task
    def long(ctx: TaskContext) -> None:
        begun.append(ctx.worker)
        may_end.wait(PATIENCE_S)

    start(heartbeat_ttl_s=8.0)
    handle, keys, beats = long.enqueue(), app.keys("default"), set()
    eventually(lambda: begun)
    before: Any = app.client.xrange(keys.streams[5])

    def is_renewed_often() -> bool:
        beats.add(app.client.zscore(keys.heartbeats, begun[0]))
        return len(beats) > 2

    eventually(is_renewed_often)
    entries: Any = app.client.xrange(keys.streams[5])
    pending: Any
    [pending] = app.client.xpending_range(keys.streams[5], GROUP, "-", "+", 10)
    elsewhere = [app.client.zcard(keys.delayed), app.client.zcard(keys.waiting[5])]
    may_end.set()
    handle.result(PATIENCE_S)

    assert entries == before
    assert len(entries) == 1
    assert (pending["consumer"].decode(), pending["times_delivered"]) == (begun[0], 1)
    assert elsewhere == [0, 0]
    assert len(begun) == 1


# S2: one idle time for all messages, and every look begins at the first entry again.


def test_s2_a_dead_workers_task_is_free_after_its_own_visibility_timeout(app: TaskApp) -> None:
    for timeout_s in (3_600, None):
        app.enqueue("any", {"timeout": timeout_s}, visibility_timeout_s=timeout_s)
    read_as(app, "dead", 2)
    scripts.take_over(app.client, app.keys("default"))

    [entry] = read_as(app, "other", 2)

    assert b'"timeout":null' in b"".join(entry.fields)
    waiting: Any = app.client.zrange(app.keys("default").waiting[5], 0, -1, withscores=True)
    [(_, due)] = waiting
    assert due / 1000 > app.client.time()[0] + 3_000


def test_s2_what_a_dead_worker_has_behind_hundreds_of_a_live_one_is_taken_over(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(name="one")
    def one() -> None: ...

    handles = one.enqueue_many({} for _ in range(600))
    keys = app.keys("default")
    scripts.heartbeat(app.client, keys, ["alive"], 3_600_000)
    assert len(read_as(app, "alive", 300)) == 300
    assert len(read_as(app, "dead", 300)) == 300
    start()

    for handle in handles[300:]:
        handle.result(PATIENCE_S)
    assert app.client.xpending(keys.streams[5], GROUP)["consumers"] == [{"name": b"alive", "pending": 300}]


# S3: to hand back, retry, give up, replay, defer and move a delayed task is to remove first and write second.

#: Keys that a task can be in.
_PLACES = re.compile(r":(\d|\d:waiting|delayed|delayed:items|dlq)$")


def takes_away(command: str) -> bool:
    """Whether it takes a task out of where it was."""
    name, key, *rest = [*command.split(), ""]
    return name in ("XACK", "XDEL", "ZREM", "HDEL") and bool(_PLACES.search(key)) and bool("".join(rest))


def puts(command: str) -> bool:
    """Whether it writes where a task is now, or that it has ended."""
    name, key, first, *_ = [*command.split(), "", ""]
    if name in ("XADD", "ZADD", "XCLAIM"):
        return bool(_PLACES.search(key))
    return name == "HSET" and ":task:" in key and first == "state"


def retry(app: TaskApp, start: StartWorker) -> None:
    @app.task(name="retried", max_retries=1, retry=QUICK)
    def retried(ctx: TaskContext) -> None:
        if ctx.attempt == 0:
            raise ValueError("not yet")

    start()
    retried.enqueue().result(PATIENCE_S)


def give_up(app: TaskApp, start: StartWorker) -> None:
    fail(app, start)


def replay(app: TaskApp, start: StartWorker) -> None:
    [handle] = fail(app, start)
    app.handle(app.control.retry(handle.id, queue="default")).result(PATIENCE_S)


def defer(app: TaskApp, start: StartWorker) -> None:
    @app.task(name="rare", rate_limit="1/h")
    def rare() -> None: ...

    handles = [rare.enqueue() for _ in range(2)]
    start()
    handles[0].result(PATIENCE_S)
    eventually(lambda: app.client.zcard(app.keys("default").waiting[5]))


def delay(app: TaskApp, start: StartWorker) -> None:
    @app.task(name="late", delay_s=0.05)
    def late() -> None: ...

    handle = late.enqueue()
    start()
    handle.result(PATIENCE_S)


def hand_back(app: TaskApp, start: StartWorker) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    @app.task(name="wait")
    def wait() -> None:
        has_begun.set()
        may_end.wait(PATIENCE_S)

    handles = [wait.enqueue() for _ in range(3)]
    worker = start(prefetch_multiplier=3)
    assert has_begun.wait(PATIENCE_S)
    worker.stop()
    may_end.set()
    worker.join()
    start()
    for handle in handles:
        handle.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("operation", "seen"),
    [
        (retry, r"^XCLAIM .*@waiting"),
        (give_up, r"^XADD \S+:dlq "),
        (replay, r"^XDEL \S+:dlq "),
        (defer, r"^ZADD \S+:5:waiting "),
        (delay, r"^ZREM \S+:delayed \S"),
        (hand_back, r"^XCLAIM .*@waiting"),
    ],
)
def test_s3_what_takes_a_task_away_writes_in_the_same_step_where_it_is_then(
    app: TaskApp, start: StartWorker, operation: Any, seen: str
) -> None:
    with watched(app.client) as steps:
        operation(app, start)

    assert any(re.search(seen, command) for step in steps for command in step)
    taking = [step for step in steps if any(map(takes_away, step))]
    assert taking
    assert [step for step in taking if not any(map(puts, step))] == []


# S4: the ack comes before the result.


def test_s4_a_task_is_acked_in_the_step_that_writes_its_result_and_what_follows_before(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def one(number: int = 1) -> int:
        return number

    with watched(app.client) as steps:
        start()
        chord([one.call(), one.call()], _total(app).partial()).enqueue().result(PATIENCE_S)

    acked = 0
    for step in steps:
        for index, command in enumerate(step):
            if command.startswith("XACK "):
                # Behind the stream and the group: all that a worker acks at once.
                count = len(command.split()) - 3
                for before in (r"^HSET \S+:task:\S+ state succeeded .* result ", r"^HSET \S+:follow_ups "):
                    assert sum(bool(re.search(before, one)) for one in step[:index]) == count
                acked += count
    assert acked == 3


# S5: a chord is claimed, and then published.


def test_s5_the_step_that_counts_the_last_member_enqueues_the_body_once(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def one(number: int) -> int:
        return number

    with watched(app.client) as steps:
        start(concurrency=4)
        handle = chord([one.call(number) for number in range(10)], _total(app).partial()).enqueue()
        assert handle.result(PATIENCE_S) == 45

    counting = [step for step in steps if any(re.search(r"^HINCRBY \S+ left -1$", one) for one in step)]
    assert len(counting) == 10
    publishing = [
        number
        for number, step in enumerate(counting)
        if any(re.search(rf"^XADD \S+:5 .*{handle.id}", command) for command in step)
    ]
    assert publishing == [9]


# S6: streams grow for ever, and every start leaves a consumer.


def test_s6_what_is_done_leaves_nothing_but_what_expires_or_is_bounded(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(max_retries=1, retry=QUICK)
    def one(ctx: TaskContext) -> int:
        if ctx.attempt == 0:
            raise ValueError("not yet")
        return 1

    total = _total(app)
    for _ in range(3):
        with_canvas = chord([one.call(), one.call()], total.partial()).enqueue()
        handles = one.enqueue_many({} for _ in range(50))
        worker = start(concurrency=3)
        for handle in (with_canvas, *handles):
            handle.result(PATIENCE_S)
        worker.stop()
        worker.join()
    keys = app.keys("default")
    [consumer] = app.client.xinfo_consumers(keys.streams[5], GROUP)
    # As after a longer run than that of all these tasks.
    pipeline = app.client.pipeline(transaction=False)
    for _ in range(12_000):
        pipeline.xadd(keys.events, {"data": "[]"})
    pipeline.execute()
    scripts.settle_and_read(app.client, keys, "any", (), count=0, max_bytes=1, event="[]")

    assert (consumer["name"], consumer["pending"]) == (b"@waiting", 0)
    assert app.client.xlen(keys.streams[5]) == 0
    assert app.client.xlen(keys.events) < 11_000
    lasting = {key.decode() for key in app.client.scan_iter(f"{app.namespace}:*") if app.client.ttl(key) < 0}
    assert lasting == {keys.meta, keys.streams[5], keys.events, f"{app.namespace}:queues"}


# S7: a broadcast that is a queue reaches one worker, and leaves its reply streams behind.


def test_s7_a_request_without_a_name_reaches_every_worker_and_each_one_answers(
    app: TaskApp, start: StartWorker
) -> None:
    names = {f"worker-{number}" for number in range(5)}
    for name in names:
        start(name=name, queues=("default", "mail"), concurrency=2)

    answers = app.control.ping(timeout_s=PATIENCE_S)

    assert answers.keys() == names
    assert all(answer is not None and answer["pid"] for answer in answers.values())


def test_s7_control_leaves_no_groups_no_answers_and_one_stream_that_expires(
    app: TaskApp, start: StartWorker
) -> None:
    worker = start()
    for _ in range(3):
        app.control.ping(timeout_s=PATIENCE_S)
        app.control.inspect(timeout_s=PATIENCE_S)
    worker.stop()
    worker.join()

    assert app.client.keys(f"{app.namespace}:*") == [control_key(app.namespace).encode()]
    assert app.client.xinfo_groups(control_key(app.namespace)) == []
    assert 0 < app.client.pttl(control_key(app.namespace)) <= 3_600_000


# S8: a read of ten streams returns its count from each of them.


def test_s8_a_read_takes_nothing_of_a_lower_priority_before_the_higher_is_empty(app: TaskApp) -> None:
    for priority in (0, 5, 9):
        for _ in range(8):
            app.enqueue("any", priority=priority)

    reads = [[entry.priority for entry in read_as(app, "one", 5)] for _ in range(5)]

    assert [len(read) for read in reads] == [5, 5, 5, 5, 4]
    in_order = [priority for read in reads for priority in read]
    assert in_order == sorted(in_order, reverse=True)


def test_s8_a_task_of_a_higher_priority_that_has_waited_goes_before_new_ones_of_a_lower(app: TaskApp) -> None:
    app.enqueue("any", priority=9)
    [high] = read_as(app, "one", 1)
    app.enqueue("any", priority=5)
    back = scripts.Change("hand_back", 9, high.entry_id, high.delivery_count, 0, "0")
    scripts.settle_and_read(app.client, app.keys("default"), "one", [back], count=0, max_bytes=1)

    assert [(entry.priority, entry.has_waited) for entry in read_as(app, "two", 5)] == [(9, True), (5, False)]


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_s8_a_worker_that_waits_begins_with_the_highest_of_what_comes_at_once(
    app: TaskApp, start: StartWorker, server_url: str, prefetch: int
) -> None:
    begun: list[int] = []

    @app.task
    def note(number: int) -> None:
        begun.append(number)

    app.use_server(f"{server_url}{'&' if '?' in server_url else '?'}client_name={app.namespace}")
    app.send_many(note.with_options(priority=one).call(one) for one in (9, 5, 0))
    start(prefetch_multiplier=prefetch)
    eventually(lambda: len(begun) == 3)

    for _ in range(5):
        begun.clear()
        eventually(lambda: is_waiting(app))
        handles = app.send_many(note.with_options(priority=one).call(one) for one in (0, 5, 9, 0, 9))
        for handle in handles:
            handle.result(PATIENCE_S)

        assert begun == [9, 9, 5, 0, 0]
        # What was handed back unbegun was no attempt.
        assert [record.attempt for handle in handles if (record := handle.status()) is not None] == [0] * 5


def is_waiting(app: TaskApp) -> bool:
    """Whether a worker of this app waits for new tasks."""
    clients = [client for client in app.client.client_list() if client["name"] == app.namespace]
    return any(client["cmd"] == "xreadgroup" and "b" in client["flags"] for client in clients)


# S9: a lag that Redis does not know is shown as 0.


def test_s9_the_number_of_queued_tasks_is_right_where_redis_does_not_know_the_lag(app: TaskApp) -> None:
    for _ in range(6):
        app.enqueue("any")
    keys = app.keys("default")
    read_as(app, "one", 2)
    entries: Any = app.client.xrange(keys.streams[5])
    app.client.xdel(keys.streams[5], entries[3][0])
    [info] = app.client.xinfo_groups(keys.streams[5])
    stats = app.control.queue("default")

    # Redis 6.2 has no such field.
    assert info.get("lag") is None
    assert (stats.queued, stats.in_flight) == (3, 2)


# S10: all dead letters are read at once, and one that is replayed has its attempts used up.


def test_s10_a_retried_dead_letter_is_a_new_task_whose_attempts_count_from_0(
    app: TaskApp, start: StartWorker
) -> None:
    [handle] = fail(app, start)

    new_id = app.control.retry(handle.id, queue="default")

    assert new_id != handle.id
    assert app.handle(new_id).result(PATIENCE_S) == [0, 0]
    status = app.handle(new_id).status()
    assert status is not None
    assert status.history[0].facts == {"retryOf": handle.id}
    assert app.client.xlen(app.keys("default").dead_letters) == 0
    old = handle.status()
    assert old is not None
    assert old.state == "dead_lettered"


def test_s10_a_dead_letter_among_thousands_is_found_page_by_page(app: TaskApp, start: StartWorker) -> None:
    handles = fail(app, start, 250)
    letters = pages(app, "dead_lettered", limit=40)
    assert sorted(task.id for task in letters) == sorted(handle.id for handle in handles)
    assert "ValueError: number" in letters[0].error

    new_id = app.control.retry(handles[200].id, queue="default")

    assert app.handle(new_id).result(PATIENCE_S) == [200, 0]
    assert app.client.xlen(app.keys("default").dead_letters) == 249


# S11: what another process does is not seen, and to list tasks is to scan all keys.


def test_s11_tasks_are_listed_without_a_scan_and_without_a_read_of_every_record(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def one() -> None: ...

    @app.task(rate_limit="1/h")
    def rare() -> None: ...

    for handle in one.enqueue_many({} for _ in range(500)):
        assert handle.is_new
    start()
    eventually(lambda: app.control.queue("default").queued == 0 and not pages(app, "in_flight"))
    commands: list[str] = []

    class Watched:
        """The client, and the commands that it was given."""

        def execute_command(self, *command: Any, **options: Any) -> Any:
            commands.append(str(command[0]))
            return app.client.execute_command(*command, **options)

        def pipeline(self, **options: Any) -> Any:
            commands.append("pipeline")
            return app.client.pipeline(**options)

    watched: Any = Watched()
    listing = TaskListing(watched, app.keys("default"))
    page = listing.page("ended", limit=50)
    places: Any = ("queued", "in_flight", "waiting", "delayed", "dead_lettered")
    for where in places:
        listing.page(where, limit=50)

    assert len(page.tasks) == 50
    assert not {"SCAN", "KEYS", "HGETALL"} & set(commands)
    assert len(commands) < 20


def test_s11_what_another_process_does_is_seen(app: TaskApp, start: StartWorker, server_url: str) -> None:
    @app.task(name="one")
    def one() -> None: ...

    with TaskApp(server_url, namespace=app.namespace) as other:
        handle = other.enqueue("one")
    start()
    handle.result(PATIENCE_S)

    assert [task.id for task in pages(app, "ended")] == [handle.id]


# S12: the user's name in the URL is dropped, and there is neither Sentinel nor Cluster.


def test_s12_a_worker_works_as_the_acl_user_of_its_url() -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as admin:
        admin.acl_setuser("tasks", enabled=True, passwords=["+s3cret"], keys=["tasks:*"], commands=["+@all"])
        url = f"redis://tasks:s3cret@127.0.0.1:{server.port}/0"
        with TaskApp(url) as app:

            @app.task
            def one() -> int:
                return 1

            with Worker(app, WorkerConfig(pool="thread", concurrency=1)):
                assert one.enqueue().result(PATIENCE_S) == 1
                users = {client["user"] for client in app.client.client_list(_type="normal")}

    assert users == {"tasks", "default"}


def test_s12_a_worker_finds_the_primary_by_sentinel_and_after_a_failover_the_new_one(sentinel: Any) -> None:
    port, primary, _ = sentinel
    with TaskApp(f"redis+sentinel://127.0.0.1:{port}/orders-service/0") as app:

        @app.task
        def one(number: int) -> int:
            return number

        with Worker(app, WorkerConfig(pool="thread", concurrency=1, heartbeat_ttl_s=4.0)) as worker:
            assert one.enqueue(1).result(PATIENCE_S) == 1
            primary.kill()
            handle = eventually(lambda: _enqueued(one, 2))
            assert handle is not None
            assert eventually(lambda: _result(handle)) == 2
            assert worker.is_running


# S13: the results of a chord come in the order in which they were counted.


def test_s13_the_results_of_a_chord_are_in_the_order_of_its_members_whichever_ends_first(
    app: TaskApp, start: StartWorker
) -> None:
    ended = [threading.Event() for _ in range(5)]
    order: list[int] = []

    @app.task
    def member(number: int) -> int:
        if number < 4:
            ended[number + 1].wait(PATIENCE_S)
        order.append(number)
        return number

    @app.task
    def body(numbers: list[int]) -> list[int]:
        return numbers

    start(concurrency=5)
    handle = chord([member.call(number) for number in range(5)], body.partial()).enqueue()
    for number in (4, 3, 2, 1):
        # Counted, not only returned.
        eventually(lambda left=number: _left(app) == left)  # type: ignore[misc]
        ended[number].set()

    assert handle.result(PATIENCE_S) == [0, 1, 2, 3, 4]
    assert order == [4, 3, 2, 1, 0]


# S14: a task that kills its worker is delivered for ever.

_DEADLY = """
import os, signal
from pathlib import Path
from conquiet.tasks import TaskApp, TaskContext

app = TaskApp(namespace={namespace!r})


@app.task(max_retries=2)
def deadly() -> None:
    with Path("begun").open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(max_retries=0)
def harmless(ctx: TaskContext) -> int:
    return ctx.attempt
"""


def test_s14_a_task_that_kills_its_worker_each_time_is_given_up_with_its_reason(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = f"tasks-{uuid.uuid4().hex[:10]}"
    Path("deadly.py").write_text(_DEADLY.format(namespace=namespace))
    command = ("worker", "deadly.py:app", "--pool", "thread", "--concurrency", 1, "--heartbeat-ttl", "2s")
    with TaskApp(valkey_url, namespace=namespace) as app:
        handle = app.enqueue("deadly.deadly", max_retries=2)
        others = [app.enqueue("deadly.harmless", max_retries=0) for _ in range(3)]

        def is_final() -> bool:
            status = handle.status()
            return status is not None and status.state.is_final

        while not is_final():
            assert len(Path("begun").read_text() if Path("begun").exists() else "") <= 3
            with running(*command, "--url", valkey_url) as worker:
                eventually(lambda: is_final() or worker.poll() is not None)
                if is_final():
                    assert all(isinstance(other.result(PATIENCE_S), int) for other in others)
        status = handle.status()

    assert status is not None
    assert status.state == "dead_lettered"
    assert "its worker died each time" in str(status.error)
    assert Path("begun").read_text() == "xxx"


# S15: settings that are documented and never read.


def test_s15_every_option_that_the_page_of_tasks_names_is_one_and_each_is_used() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text()
    table = page[page.index("| option | default |") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    options = {field.name for field in fields(TaskOptions)}
    settings = {field.name for field in fields(WorkerConfig)}
    code = [file.read_text() for file in (ROOT / "src" / "conquiet" / "tasks").rglob("*.py")]

    assert named == options
    for name in options | settings:
        # Where it is declared, and where it is read.
        assert sum(len(re.findall(rf"\.{name}\b", text)) for text in code) > 0, name


def test_s15_every_setting_of_a_worker_can_be_given_on_the_command_line(run_help: str) -> None:
    settings = {field.name for field in fields(WorkerConfig)} - {"max_outage_s"}
    given = {name.removesuffix("_s") for name in settings}

    assert {name for name in given if f"--{name.replace('_', '-')}" not in run_help} == set()


@pytest.fixture
def run_help() -> str:
    with running("worker", "--help", COLUMNS="200", NO_COLOR="1") as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
    return out


def _total(app: TaskApp) -> Task[..., int]:
    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return total


def _left(app: TaskApp) -> int:
    [group] = [key for key in app.client.scan_iter(f"{app.namespace}:*:group:*") if key.count(b":") == 3]
    return int(app.client.hget(group, "left") or 0)


def _enqueued(task: Task[..., Any], number: int) -> Any:
    try:
        return task.enqueue(number)
    except Exception:
        return None


def _result(handle: Any) -> Any:
    try:
        return handle.result(1)
    except Exception:
        return None
