"""The ACL lines of docs/security.md: each is enough for its role, and none can destroy what is kept."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from conquiet import ConquietError, DrainLimits, EmbeddedServer, QueueError
from conquiet.mq import DeadLetters, MqAdmin, Topics, drain_partition
from conquiet.queue import open_client
from conquiet.tasks import DirectoryPayloads
from conquiet.tasks.keys import GROUP
from tests.cli import roles, task_roles
from tests.cli.processes import ended, running
from tests.eventually import HANG_S, eventually
from tests.services import REDIS_KINDS, redis_binary, unavailable

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
LINES = dict(re.findall(r"^user (\S+) on (.*)$", PAGE.read_text(), re.MULTILINE))
PASSWORD = "a-pa55w/rd"

#: As Valkey, Redis 7 and Redis 6.2 put it, inside and outside of scripts.
REFUSED = r"(?i)permission|NOPERM|can't run this command|can't access at least one of the keys"

#: What destroys a stream of messages or dead letters, a topic's meta, or another key; KEY is the key.
DESTRUCTIVE = [
    "DEL KEY",
    "UNLINK KEY",
    "GETDEL KEY",
    "PEXPIRE KEY 1",
    "EXPIRE KEY 0",
    "PEXPIREAT KEY 1",
    "SET KEY x",
    "RENAME KEY other",
    "COPY other KEY REPLACE",
    "RESTORE KEY 0 x REPLACE",
    "MOVE KEY 1",
    "SORT other STORE KEY",
    "XTRIM KEY MAXLEN 0",
    "XTRIM KEY MINID 9999999999999-0",
    "XDEL KEY 1-1",
    "XSETID KEY 9999999999999-0",
    "XGROUP DESTROY KEY billing",
    "XGROUP SETID KEY billing $",
    "XAUTOCLAIM KEY billing thief 0 0",
    "HSET KEY partitionCount 1",
    "HDEL KEY partitionCount",
    "HINCRBY KEY partitionCount -1",
    "SREM KEY orders",
    "ZREMRANGEBYRANK KEY 0 -1",
]

#: The messages, and what says where they are.
DATA = {
    "stream": [roles.STREAM, f"{{{roles.STREAM}}}:dlq"],
    "mq": [
        "stream:topic:orders:p:0",
        "stream:topic:orders:dlq",
        "streaming:mq:topic:orders:meta",
        "streaming:mq:topic:orders:partitions",
        "streaming:mq:topics:registry",
    ],
    "task": ["tasks:{orders}:5", "tasks:{orders}:dlq", "tasks:{orders}:meta", "tasks:queues"],
}

#: A worker deletes what it has run; the page says so.
POSSIBLE = {
    ("task-worker", "tasks:{orders}:5"): {"XDEL KEY 1-1"},
    ("task-listener", "tasks:{orders}:meta"): {"HSET KEY partitionCount 1", "HDEL KEY partitionCount"},
}

#: A task that takes its process with it.
POOL = """
import os, signal
from pathlib import Path

from conquiet.tasks import TaskApp

app = TaskApp()


@app.task
def die_once(path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1
"""

#: What must have been done before the role can work, and what it does.
PARTS = {
    "stream-producer": ([], roles.stream_producer),
    "stream-consumer": ([roles.stream_producer], roles.stream_consumer),
    "stream-admin": ([roles.stream_producer, roles.leave_stream_consumers], roles.stream_admin),
    "mq-producer": ([], roles.mq_producer),
    "mq-consumer": ([roles.mq_producer], roles.mq_consumer),
    "mq-admin": ([roles.mq_producer, roles.leave_dead_letters, roles.leave_mq_group], roles.mq_admin),
    "task-producer": ([task_roles.leave_work_done], task_roles.task_producer),
    "task-worker": ([task_roles.leave_tasks], task_roles.task_worker),
    "task-admin": ([task_roles.leave_a_queue], task_roles.task_admin),
    "task-listener": ([], task_roles.task_listener),
    "task-beat": ([task_roles.leave_a_listener], task_roles.task_beat),
}


@pytest.fixture(scope="module", params=REDIS_KINDS)
def server(request):
    """A server of the test's own: its users and all of its keys belong to it."""
    binary = redis_binary(request.param)
    if binary is None:
        unavailable("redis", f"no binary for {request.param}")
    with EmbeddedServer(binary=binary) as started:
        yield started


@pytest.fixture
def everything(server):
    """A client that may do everything."""
    with open_client(server.url) as client:
        yield client


@contextmanager
def as_user(server, everything, name: str, rules: str):
    everything.execute_command(
        "ACL", "SETUSER", name, "reset", "on", *rules.replace("PASSWORD", PASSWORD).split()
    )
    encoded = PASSWORD.replace("/", "%2F")
    with open_client(f"redis://{name}:{encoded}@127.0.0.1:{server.port}/0") as client:
        yield client


def flat(rules: str) -> str:
    """The line for Redis 6.2, as the page says: no selectors, no patterns for reading or writing alone."""
    parts = rules.translate(str.maketrans("", "", "()")).replace("%R~", "~").replace("%W~", "~").split()
    return " ".join(dict.fromkeys(parts))


def rules_for(everything, role: str) -> str:
    return flat(LINES[role]) if is_old(everything) else LINES[role]


def is_old(everything) -> bool:
    return str(everything.info("server")["redis_version"]).startswith("6.")


def without(rules: list[str], index: int) -> str:
    """The rules without one command, its selector closed as it was."""
    closing = ")" if rules[index].endswith(")") else ""
    return " ".join([*rules[: index - 1], rules[index - 1] + closing, *rules[index + 1 :]])


def prepare(everything, role: str) -> None:
    for key in everything.scan_iter("*"):
        everything.delete(key)
    # As after a failover: scripts are sent in full again.
    everything.script_flush()
    if role.startswith("mq"):
        Topics(everything).create(roles.TOPIC, 2)
    for earlier in PARTS[role][0]:
        earlier(everything)
    everything.acl_log_reset()


def works(server, everything, role: str, rules: str) -> bool:
    prepare(everything, role)
    with as_user(server, everything, role, rules) as client:
        try:
            PARTS[role][1](client)
            if role == "mq-consumer":
                roles.check_mq_consumer(everything)
        except (ConquietError, redis.RedisError, AssertionError):
            return False
    # What goes on without a right that it asks for does not do all of its work.
    return not role.startswith("task") or not task_roles.refusals(everything, role)


def test_every_role_has_a_line():
    assert set(LINES) == set(PARTS)


@pytest.mark.parametrize("role", PARTS)
def test_the_line_of_a_role_is_enough_for_its_work(server, everything, role):
    prepare(everything, role)

    with as_user(server, everything, role, rules_for(everything, role)) as client:
        PARTS[role][1](client)

    if role.startswith("task"):
        assert task_roles.refusals(everything, role) == []


@pytest.mark.parametrize("role", ["task-producer", "task-worker", "task-admin"])
def test_what_the_page_adds_is_enough_for_a_role_to_write_events_for_listeners(server, everything, role):
    added = selectors_behind("While one listens, the others write events")
    prepare(everything, role)

    with task_roles.listening(everything) as seen:
        rules = f"{LINES[role]} {added}"
        rules = flat(rules) if is_old(everything) else rules
        with as_user(server, everything, role, rules) as client:
            PARTS[role][1](client)
        assert task_roles.refusals(everything, role) == []
        assert len(seen) > 1


@pytest.mark.parametrize("right", ["+hdel", "+hget", "+hset", "+xlen", "+xrange", "+xread", "+xrevrange"])
def test_a_listener_needs_each_of_its_rights(server, everything, right):
    rules = rules_for(everything, "task-listener").split()
    [index] = [index for index, rule in enumerate(rules) if rule.rstrip(")") == right]

    assert not works(server, everything, "task-listener", without(rules, index))


@pytest.mark.parametrize("role", ["task-producer", "task-worker", "task-admin"])
def test_what_the_page_adds_is_enough_for_a_role_with_a_payload_store(server, everything, role, tmp_path):
    after = "an administrator who retries" if role == "task-admin" else "With a payload store"
    for key in everything.scan_iter("*"):
        everything.delete(key)
    everything.acl_log_reset()
    DirectoryPayloads(tmp_path / "payloads").create()

    rules = f"{LINES[role]} {selectors_behind(after)}"
    rules = flat(rules) if is_old(everything) else rules
    with as_user(server, everything, role, rules) as client:
        task_roles.store_in(tmp_path / "payloads")(client)

    assert task_roles.refusals(everything, role) == []


def selectors_behind(words: str) -> str:
    """What stands in the first backquotes behind these words of the page."""
    return re.findall(r"`(\(.*?\))`", PAGE.read_text().partition(words)[2], re.DOTALL)[0]


def fill(everything, kind: str) -> None:
    """Messages, dead letters and groups under every key that a role must not destroy."""
    prepare(everything, f"{kind}-admin")
    everything.set("other", "value")
    for key in DATA[kind]:
        if everything.type(key) == b"stream":
            everything.xadd(key, {"data": "{}"})
            with suppress(redis.ResponseError):  # it is there
                everything.xgroup_create(key, "billing", "0-0")


@pytest.mark.parametrize("role", [role for role in PARTS if not role.endswith("admin")])
def test_producers_and_consumers_can_destroy_no_messages_and_no_topic(server, everything, role):
    if is_old(everything):
        # Redis 6.2 cannot express it, and the page says so.
        assert "Redis 6.2 has no selectors" in PAGE.read_text()
        return
    kind = role.partition("-")[0]
    fill(everything, kind)

    with as_user(server, everything, role, LINES[role]) as client:
        for key in DATA[kind]:
            assert everything.exists(key)
            before = everything.dump(key)
            for text in DESTRUCTIVE:
                if text in POSSIBLE.get((role, key), ()):
                    continue
                command = [key if part == "KEY" else part for part in text.split()]
                # Directly, and in a script that declares the key.
                parts = ", ".join(f"'{part}'" for part in command)
                for attempt in (command, ["EVAL", f"return redis.call({parts})", 1, key]):
                    with pytest.raises(redis.RedisError, match=REFUSED):
                        client.execute_command(*attempt)
            assert (everything.dump(key), everything.pttl(key)) == (before, -1)


@pytest.mark.parametrize(
    ("role", "key", "is_possible"),
    [
        ("stream-producer", "orders", True),
        ("stream-consumer", "orders", False),
        ("stream-consumer", "{orders}:dlq", True),
        ("mq-producer", "stream:topic:orders:p:0", True),
        ("mq-producer", "stream:topic:orders:dlq", False),
        ("mq-consumer", "stream:topic:orders:p:0", True),
        ("task-producer", "tasks:{orders}:5", True),
        ("task-producer", "tasks:{orders}:dlq", False),
        ("task-worker", "tasks:{orders}:dlq", True),
    ],
)
def test_who_may_add_may_empty_as_the_page_says(server, everything, role, key, is_possible):
    if is_old(everything):
        return
    fill(everything, role.partition("-")[0])
    with as_user(server, everything, role, LINES[role]) as client:
        command = ("XADD", key, "MAXLEN", "0", "*", "data", "{}")
        if is_possible:
            assert client.execute_command(*command)
        else:
            with pytest.raises(redis.RedisError, match=REFUSED):
                client.execute_command(*command)

    assert (everything.xlen(key) == 0) is is_possible
    assert "`XADD orders MAXLEN 0 …` trims the stream" in PAGE.read_text()


#: What a role can do beyond its work: words of the page, the role, what it calls.
BEYOND = [
    ("takes the last id that there is", "stream-producer", ["XADD orders MAX-MAX data {}"]),
    ("takes the last id that there is", "mq-producer", ["XADD stream:topic:orders:p:0 MAX-MAX data {}"]),
    ("may have others believe", "stream-producer", ["HSET {orders}:once:a 0 1-1"]),
    ("may ack what was not handled", "stream-consumer", ["XACK orders other 1-1"]),
    ("may take what another consumer has", "stream-consumer", ["XCLAIM orders billing thief 0 1-1"]),
    ("`LASTID` moves a group beyond", "stream-consumer", ["XCLAIM orders billing w 0 1-1 LASTID MAX-MAX"]),
    (
        "`LASTID` moves a group beyond",
        "mq-consumer",
        ["XCLAIM stream:topic:orders:p:0 billing w 0 1-1 LASTID MAX-MAX"],
    ),
    (
        "the group of a queue of tasks",
        "task-worker",
        ["XCLAIM tasks:{orders}:5 workers w 0 1-1 LASTID MAX-MAX"],
    ),
    ("one that nobody reads keeps every entry", "stream-consumer", ["XGROUP CREATE orders unread 0-0"]),
    (
        "one that nobody reads keeps every entry",
        "mq-consumer",
        ["XGROUP CREATE stream:topic:orders:p:0 unread 0-0"],
    ),
    ("drops what that consumer has pending", "stream-consumer", ["XGROUP DELCONSUMER orders billing w"]),
    (
        "drops what that consumer has pending",
        "mq-consumer",
        ["XGROUP DELCONSUMER stream:topic:orders:p:0 billing w"],
    ),
    (
        "may invent or hide them",
        "stream-consumer",
        ["HDEL {orders}:end loss:1", "HSET {orders}:end loss:9 {}"],
    ),
    ("end another one's heartbeat", "stream-consumer", ["HDEL {orders}:drains:billing worker-1"]),
    (
        "also of other groups",
        "mq-consumer",
        [
            "ZREM streaming:mq:retry:orders send:a",
            "ZADD streaming:mq:retry:orders 9999999999999 send:b",
            "HDEL streaming:mq:retry:item:orders send:a",
            "HSET streaming:mq:retry:item:orders send:b 0:{}",
        ],
    ),
    (
        "need topics of their own",
        "mq-producer",
        ["HSET streaming:mq:retry:item:orders send:a 0:{}", "HSET streaming:mq:dedupe:orders a 1-1"],
    ),
    (
        "need topics of their own",
        "mq-consumer",
        [
            "DEL streaming:mq:lease:orders:other:0",
            "HSET streaming:mq:lease:orders:other:0 owner thief",
            "HDEL streaming:mq:failures:orders:other:0 1-1",
            "ZADD streaming:mq:waiting:orders:other:0 9999999999999 1-1",
        ],
    ),
    (
        "may pause its queue and change what others see",
        "task-producer",
        [
            "HSETNX tasks:{orders}:meta paused 1",
            "HSET tasks:{orders}:task:a state success",
            "HSET tasks:{orders}:delayed:items a 5:{}",
        ],
    ),
    ("may pause the queue**: that somebody listens", "task-listener", ["HSET tasks:{orders}:meta paused 1"]),
    (
        "may drop them",
        "task-worker",
        [
            "XDEL tasks:{orders}:5 1-1",
            "XACK tasks:{orders}:5 workers 1-1",
            "XCLAIM tasks:{orders}:5 workers thief 0 1-1",
            "HSET tasks:{orders}:task:a result 1",
            "ZREM tasks:{orders}:heartbeats w",
            "XADD tasks:answers:a * data {}",
            "ZREM tasks:{orders}:delayed a",
            "HDEL tasks:{orders}:delayed:items a",
        ],
    ),
    ("end a blocking read of any", "task-worker", ["CLIENT UNBLOCK 999999"]),
    ("may stop every worker", "task-admin", ["XADD tasks:control * data {}"]),
]


@pytest.mark.parametrize(("words", "role", "calls"), BEYOND)
def test_what_a_role_can_do_beyond_its_work_is_on_the_page(server, everything, words, role, calls):
    """Each of them is tried: what stops being possible has no place there."""
    if is_old(everything):
        return
    fill(everything, role.partition("-")[0])
    assert words in " ".join(PAGE.read_text().split())
    for stream, group in (("orders", "billing"), ("orders", "other"), ("tasks:{orders}:5", GROUP)):
        with suppress(redis.ResponseError):  # it is there
            everything.xgroup_create(stream, group, "0-0", mkstream=True)

    with as_user(server, everything, role, LINES[role]) as client:
        for call in calls:
            client.execute_command(*call.replace("MAX", str(2**64 - 1)).split())


def test_who_may_run_scripts_may_stop_the_server_as_the_page_says(server, everything):
    assert "**Who may run scripts, may stop the server.**" in PAGE.read_text()
    with (
        as_user(server, everything, "stream-producer", rules_for(everything, "stream-producer")) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        stopped = threads.submit(client.execute_command, "EVAL", "while true do end", 0)

        def is_ended() -> bool:
            # Before it runs there is nothing to end.
            with suppress(redis.RedisError):
                everything.script_kill()
            return stopped.done()

        eventually(is_ended)

    assert "killed" in str(stopped.exception())


def test_a_consumer_that_cannot_add_to_its_partitions_works_where_nothing_is_delayed(server, everything):
    if is_old(everything):
        return
    adding = "(%W~stream:topic:orders:p:* +xadd) "
    assert adding in LINES["mq-consumer"]
    prepare(everything, "mq-consumer")
    topic = Topics(everything).open(roles.TOPIC)
    everything.delete(topic.keys.delayed(0), topic.keys.delayed_items(0))

    with as_user(server, everything, "mq-consumer", LINES["mq-consumer"].replace(adding, "")) as client:
        for partition in topic.partitions:
            limits = DrainLimits(idle_ms=50)
            opened = Topics(client).open(roles.TOPIC)
            drain_partition(opened, partition, "billing", lambda _msg: None, limits=limits)
        with pytest.raises(redis.RedisError, match=REFUSED):
            client.execute_command("XADD", topic.keys.stream(0), "MAXLEN", "0", "*", "data", "{}")

    assert sum(everything.xpending(topic.keys.stream(one), "billing")["pending"] for one in (0, 1)) == 0


@pytest.mark.parametrize("role", ["stream-producer", "stream-consumer", "mq-producer", "mq-consumer"])
def test_producers_and_consumers_cannot_do_what_only_an_administrator_should(server, everything, role):
    prepare(everything, "mq-admin")
    roles.stream_producer(everything)
    everything.xgroup_create(roles.STREAM, roles.GROUP, "0-0")
    everything.set("somebody-elses", "value")
    name = roles.TOPIC
    with as_user(server, everything, role, rules_for(everything, role)) as client:
        stream = roles.STREAM if role.startswith("stream") else "stream:topic:orders:p:0"
        forbidden = [
            lambda: Topics(client).delete(name),
            lambda: Topics(client).create("refunds"),
            lambda: Topics(client).grow(name, 3),
            lambda: MqAdmin(client).reset_group(name, roles.ADMINISTERED, "end", dry_run=False),
            lambda: MqAdmin(client).delete_group(name, roles.ADMINISTERED, force=True),
            lambda: MqAdmin(client).trim(name, retention_length=0),
            lambda: DeadLetters(Topics(client).open(name)).purge(older_than_ms=0),
            lambda: client.xtrim(stream, 0),
            lambda: client.xdel(stream, "1-1"),
            lambda: client.execute_command("XGROUP", "DESTROY", stream, roles.GROUP),
            lambda: client.execute_command("XGROUP", "SETID", stream, roles.GROUP, "$"),
            lambda: client.get("somebody-elses"),
            lambda: client.config_get("*"),
            lambda: client.execute_command("ACL", "LIST"),
            lambda: client.flushall(),
        ]

        for call in forbidden:
            with pytest.raises((QueueError, redis.exceptions.NoPermissionError), match=REFUSED):
                call()


@pytest.mark.parametrize("role", ["task-producer", "task-worker"])
def test_who_enqueues_or_runs_tasks_cannot_do_what_only_an_administrator_should(server, everything, role):
    prepare(everything, "task-admin")
    everything.set("somebody-elses", "value")
    with task_roles.app_of(everything) as app:
        [queued, *_] = app.control.tasks(roles.STREAM, "queued").tasks
        [letter, *_] = app.control.tasks(roles.STREAM, "dead_lettered").tasks
    stream = "tasks:{orders}:5"
    with (
        as_user(server, everything, role, rules_for(everything, role)) as client,
        task_roles.app_of(client, as_role=True) as app,
    ):
        forbidden = [
            lambda: client.execute_command("XGROUP", "DESTROY", stream, GROUP),
            lambda: client.execute_command("XGROUP", "SETID", stream, GROUP, "$"),
            lambda: client.get("somebody-elses"),
            lambda: client.config_get("*"),
            lambda: client.execute_command("ACL", "LIST"),
            lambda: client.execute_command("CLIENT", "KILL", "ID", "1"),
            lambda: client.flushall(),
        ]
        if not is_old(everything):  # where a role has all of its commands for all of its keys
            forbidden += [
                lambda: client.xtrim(stream, 0),
                lambda: app.control.pause(roles.STREAM),
                lambda: app.control.set_rate("add", "1/h", queue=roles.STREAM),
                lambda: app.control.revoke(queued.id, queue=roles.STREAM),
                lambda: app.control.retry(letter.id, queue=roles.STREAM),
                lambda: app.control.tasks(roles.STREAM, "dead_lettered"),
                lambda: app.control.shutdown(),
            ]

        for call in forbidden:
            with pytest.raises((QueueError, redis.exceptions.NoPermissionError), match=REFUSED):
                call()


def test_the_processes_of_a_worker_need_no_more_than_its_line(tmp_path):
    Path("pool.py").write_text(POOL)
    role, password = "task-worker", PASSWORD.replace("/", "%2F")
    words = ("worker", "pool.py:app", "--queues", roles.STREAM, "--concurrency", 1, "--pool", "process")

    with (
        EmbeddedServer() as server,
        open_client(server.url) as everything,
        as_user(server, everything, role, LINES[role]),
        task_roles.app_of(everything) as app,
    ):
        handle = app.enqueue("pool.die_once", {"path": str(tmp_path / "died")}, max_retries=1)
        url = f"redis://{role}:{password}@127.0.0.1:{server.port}/0"
        with running(*words, CONQUIET_REDIS_URL=url) as worker:
            assert handle.result(HANG_S) == 1
            code, _, err = ended(worker, signal.SIGTERM)
        refusals = task_roles.refusals(everything, role)

    assert (code, "killed by signal 9" in err, refusals) == (0, True, [])


def test_a_producer_that_may_not_make_a_group_is_told_and_adds_nothing(server, everything):
    prepare(everything, "task-producer")
    rules = rules_for(everything, "task-producer").replace("+xgroup|create", "+xlen")
    with (
        as_user(server, everything, "task-producer", rules) as client,
        task_roles.app_of(client, as_role=True) as app,
        pytest.raises(QueueError, match=REFUSED),
    ):
        # Of a priority that nobody has used before.
        app.tasks["add"].with_options(priority=3).enqueue(1)

    assert everything.exists("tasks:{orders}:3") == 0


@pytest.mark.parametrize("role", PARTS)
def test_a_line_with_one_command_less_is_not_enough(role):
    with EmbeddedServer() as server, open_client(server.url) as everything:
        assert works(server, everything, role, LINES[role])

        rules = LINES[role].split()
        needless = [
            (index, rule)
            for index, rule in enumerate(rules)
            if rule.startswith("+") and works(server, everything, role, without(rules, index))
        ]

    assert needless == []
