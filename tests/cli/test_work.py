"""`conquiet work`, drains of several partitions at once, and `conquiet streams`."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from conquiet import DrainLimits
from conquiet.mq import ConsumerConfig, Message, Producer, Topics, drain_topic
from conquiet.queue import open_client
from tests.cli.processes import ended, read_line, running
from tests.cli.test_drain import drain, fill
from tests.eventually import HANG_S, eventually

HANDLER = """
from sqlalchemy import text

def note(msg, session):
    session.execute(text("CREATE TABLE IF NOT EXISTS notes (n INTEGER, attempt INTEGER)"))
    if msg.payload["n"] == 3 and msg.attempt == 1:
        raise ValueError("no three at first")
    session.execute(text("INSERT INTO notes VALUES (:n, :attempt)"), {**msg.payload, "attempt": msg.attempt})
"""

#: Ends when two messages are handled at once.
MEETING = """
import threading

two = threading.Barrier(2)

def meet(msg):
    two.wait()
"""


@pytest.fixture
def database(tmp_path) -> Path:
    (tmp_path / "noting.py").write_text(HANDLER)
    return tmp_path / "notes.db"


def noted(database: Path) -> list[tuple[int, int]]:
    if not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        try:
            return sorted(connection.execute("SELECT n, attempt FROM notes"))
        except sqlite3.OperationalError:
            return []


def arguments(name: str, database: Path, url: str) -> list[object]:
    more = ["--handler", "noting:note", "--database", f"sqlite:///{database}", "--retry-delay", "1ms"]
    return ["work", name, "--group", "billing", *more, "--inbox", "--url", url, "--json"]


@pytest.mark.parametrize("kind", ["stream", "topic"])
def test_work_handles_what_comes_and_retries_what_fails_until_it_is_stopped(
    run, topic, valkey_url, database, kind
):
    if kind == "topic":
        run("topics", "create", topic, "--partitions", "3")
    fill(run, topic, 4)

    with running(*arguments(topic, database, valkey_url)) as process:
        shown = json.loads(read_line(process))
        eventually(lambda: len(noted(database)) == 4)
        fill(run, topic, 2)
        eventually(lambda: len(noted(database)) == 6)
        code, _, err = ended(process, signal.SIGTERM)

    assert (shown["kind"], shown["partitions"]) == (kind, 3 if kind == "topic" else 1)
    assert noted(database) == [(1, 1), (1, 1), (2, 1), (2, 1), (3, 2), (4, 1)]
    assert code == 0, err
    assert "no three at first" in err


def test_work_starts_again_when_its_code_changes(run, topic, valkey_url, database):
    run("topics", "create", topic)
    with running(*arguments(topic, database, valkey_url), "--reload") as process:
        read_line(process)
        code = HANDLER.replace("{**msg.payload,", '{"n": -msg.payload["n"],')
        Path("noting.py").write_text(code)
        # The line of the second start.
        read_line(process)
        fill(run, topic, 1)
        eventually(lambda: noted(database) == [(-1, 1)])
        assert ended(process, signal.SIGINT)[0] == 0


def test_what_does_not_go_together_is_said_in_the_words_of_the_options(run, stream, topic, database):
    fill(run, stream, 1)
    run("topics", "create", topic)
    known = ["--group", "billing", "--handler", "noting:note", "--database", f"sqlite:///{database}"]

    def problem(*more: object) -> str:
        ran = run(*more, *known)
        assert ran.code == 2, ran.err
        return ran.err

    assert "--order-by FIELD, or --no-order" in problem("work", stream, "--concurrency", "2")
    assert "--order-by FIELD, or --no-order" in problem("drain", stream, "--concurrency", "2")
    assert "--no-order and --order-by exclude" in problem("work", topic, "--order-by", "n", "--no-order")
    assert "--max-deliveries is for streams" in problem("drain", stream, "--max-attempts", "3")
    assert "a topic has --max-attempts" in problem("drain", topic, "--max-deliveries", "3")
    assert "--backoff must be" in problem("work", topic, "--backoff", "slow")
    assert "longer than --max-retry-delay" in problem(
        "work", topic, "--retry-delay", "5s", "--max-retry-delay", "1s"
    )
    assert "--parallel" in problem("drain", stream, "--parallel", "2")
    assert "--consumer must not be empty" in problem("work", topic, "--consumer", "")
    assert "--on-error must be 'raise'" in problem("drain", topic, "--on-error=stop")
    assert "--group must be 1 to 200 letters" in run("drain", topic, "--group", "a b", *known[2:]).err


def test_a_drain_of_a_topic_takes_retry_options(run, topic):
    run("topics", "create", topic)
    fill(run, topic, 3)

    ran = drain(run, topic, "fail_once", "--max-attempts", "1", "--json")

    assert (ran.json["dead_lettered"], ran.json["retried"]) == (3, 0)


def at_once(partitions: int) -> ConsumerConfig:
    return ConsumerConfig(max_partitions=partitions)


def test_partitions_are_drained_at_once(run, topic, valkey):
    opened = Topics(valkey).create(topic, partitions=3)
    Producer(valkey).send_many(topic, [Message(payload={"n": n}, partition=n % 3) for n in range(30)])
    together = threading.Barrier(3, timeout=HANG_S)
    seen: list[int] = []

    def handle(msg):
        if not seen or msg.payload["n"] < 3:
            together.wait()
        seen.append(msg.payload["n"])

    report = drain_topic(opened, "billing", handle, limits=DrainLimits(idle_ms=20), config=at_once(3))

    assert (report.handled, report.busy) == (30, ())
    assert [n for n in seen if n % 3 == 1] == [*range(1, 30, 3)]


@pytest.mark.parametrize("most", [1, 7, 29])
def test_the_limits_are_of_all_partitions_that_are_drained_at_once(run, topic, valkey, most):
    opened = Topics(valkey).create(topic, partitions=4)
    Producer(valkey).send_many(topic, [Message(payload={"n": n}, partition=n % 4) for n in range(40)])

    report = drain_topic(
        opened, "a", print, limits=DrainLimits(max_messages=most, idle_ms=20), config=at_once(4)
    )
    failing = drain_topic(
        opened, "b", fails, limits=DrainLimits(max_failures=most, idle_ms=20), config=at_once(4)
    )

    assert (report.handled, report.stopped_by) == (most, "max_messages")
    assert (failing.retried, failing.stopped_by) == (most, "max_failures")


def test_an_error_that_ends_one_partition_ends_the_drain_with_a_report_of_all(run, topic, valkey):
    opened = Topics(valkey).create(topic, partitions=2)
    Producer(valkey).send_many(topic, [Message(payload={"n": n}, partition=n % 2) for n in range(4)])

    limits = DrainLimits(on_error="raise", idle_ms=20)
    with pytest.raises(ZeroDivisionError) as caught:
        drain_topic(opened, "billing", fails, limits=limits, config=at_once(2))

    report = vars(caught.value)["drain_report"]
    assert report.topic == topic
    assert report.retried in (1, 2)


def fails(msg):
    raise ZeroDivisionError(msg.payload["n"])


def test_drain_has_an_option_for_it(run, topic):
    run("topics", "create", topic, "--partitions", "4")
    fill(run, topic, 20)

    assert drain(run, topic, "accept_alone", "--parallel", "4", "--json").json["handled"] == 20


def test_plain_streams_are_listed_and_nothing_else(run, stream, topic, database):
    run("topics", "create", topic)
    fill(run, topic, 1)
    fill(run, stream, 3)
    drain(run, stream, "refuse_three", "--database", f"sqlite:///{database}", "--max-messages", "1")
    run("tasks", "enqueue", "shop.bill", "--queue", topic)

    listed = {each["name"]: each for each in run("streams", "--json").json["streams"]}

    assert listed[stream]["length"] == 3
    assert listed[stream]["groups"] == ["billing"]
    assert not [name for name in listed if topic in name]
    assert stream in run("streams").out


def test_dead_letters_of_an_unknown_name_are_not_there(run):
    for command in (("list",), ("show",), ("replay", "--all", "--yes"), ("purge", "--all", "--yes")):
        name, *options = command
        ran = run("dlq", name, "nothing-of-this-name", *(["1-1"] if name == "show" else []), *options)
        assert ran.code == 4, ran.err


@pytest.mark.parametrize("order", [("--no-order",), ("--order-by", "n")])
def test_work_handles_several_messages_of_a_partition_at_once(run, topic, valkey_url, tmp_path, order):
    (tmp_path / "meeting.py").write_text(MEETING)
    run("topics", "create", topic, "--partitions", "1")
    fill(run, topic, 4)
    known = ("work", topic, "--group", "billing", "--url", valkey_url)
    handler = ("--handler", "meeting:meet", "--concurrency", "2", *order)
    with open_client(valkey_url) as client:
        stream = Topics(client).open(topic).keys.stream(0)

        def is_finished() -> bool:
            groups = client.xinfo_groups(stream)
            return [(group["pending"], group["lag"]) for group in groups] == [(0, 0)]

        with running(*known, *handler) as process:
            eventually(is_finished)
            assert ended(process, signal.SIGINT)[0] == 0
