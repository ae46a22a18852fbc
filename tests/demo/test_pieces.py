"""The parts of the demo: when a proof holds, what the picture shows, which error names what is missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from io import StringIO

import pytest
import redis
from rich.console import Console

from examples.demo import requirements
from examples.demo.crash import kill_in_the_middle
from examples.demo.picture import save_picture
from examples.demo.processes import DemoError, Processes
from examples.demo.proof import Counts, Proof, Total
from examples.demo.terminal_picture import draw_picture
from examples.demo.watcher import Backlog, Moment, Span, Timeline, read_backlog

SENT = Total(100, 5_000)
COUNTS = Counts(
    title="orders",
    backlog=Backlog(acked=100),
    handled=100,
    effects=100,
    redelivered=7,
    skipped=3,
    dead_letters=0,
)
RIGHT = Proof(counts=(COUNTS,), sent=SENT, kept={"in the database:": SENT})


def timeline() -> Timeline:
    made = Timeline(crash_s=5.0, spans=[Span("one drains", 0, 5), Span("another claims", 5, 10)])
    for second in range(11):
        acked = second * 10
        backlog = Backlog(acked, min(10, 100 - acked), max(0, 90 - acked))
        totals = {"in Airflow": Backlog(acked=second), "in Dagster": Backlog(waiting=second)}
        made.moments.append(Moment(at_s=float(second), rows=acked, orders=backlog, totals=totals))
    return made


def test_equal_totals_are_a_proof():
    assert RIGHT.is_right
    assert RIGHT.sentence().startswith("Totals in the database equal totals sent. Sent: 100 orders")


@pytest.mark.parametrize(
    "wrong",
    [
        replace(RIGHT, kept={"in the database:": Total(99, 5_000)}),
        replace(RIGHT, kept={"in the database:": Total(100, 5_001)}),
        replace(RIGHT, kept={"in the database:": SENT, "totals:": Total(100, 4_999)}),
        replace(RIGHT, kept={}),
        replace(RIGHT, counts=(replace(COUNTS, backlog=Backlog(acked=99, pending=1)),)),
        replace(RIGHT, counts=(replace(COUNTS, backlog=Backlog(acked=99, waiting=1)),)),
        replace(RIGHT, counts=(replace(COUNTS, effects=101),)),
        replace(RIGHT, counts=(replace(COUNTS, handled=99),)),
        replace(RIGHT, counts=(replace(COUNTS, dead_letters=1),)),
    ],
)
def test_totals_with_a_lost_repeated_waiting_or_dead_lettered_message_fail_the_proof(wrong):
    assert not wrong.is_right
    assert wrong.sentence().startswith("THE TOTALS DIFFER. Sent: 100 orders, 5,000 cents")


def test_the_table_has_a_column_for_each_group_and_a_dash_for_what_was_not_counted():
    printed = StringIO()
    console = Console(width=100, file=printed)

    console.print(replace(RIGHT, counts=(COUNTS, replace(COUNTS, title="totals", skipped=None))).table())

    lines = [line.replace(" ", "") for line in printed.getvalue().splitlines()]
    assert "│redelivered│7│7│" in lines
    assert "│skippedbytheinbox│3│-│" in lines


def test_the_picture_in_the_terminal_shows_every_message_and_the_crash():
    lines = draw_picture(timeline(), width=60).plain.splitlines()

    assert max(map(len, lines[:14])) <= 60
    crash = lines[0].index("▼")
    rows = lines[1:13]
    assert {row[crash] for row in rows} == {"┃"}
    assert rows[0].startswith("    100 ┤")
    assert [row[-1] for row in rows] == ["█"] * 12
    assert "".join(row[crash - 1] for row in reversed(rows)).strip("█▓░") == ""
    assert lines[-2:] == ["         1 one drains", "         2 another claims"]


@pytest.mark.parametrize("crash_s", [5.0, None])
def test_the_picture_is_a_file_of_moderate_size(tmp_path, crash_s):
    drawn = timeline()
    drawn.crash_s = crash_s

    save_picture(drawn, tmp_path / "demo.png", title="a title")

    assert 10_000 < (tmp_path / "demo.png").stat().st_size < 150_000


def test_a_backlog_divides_the_messages_into_acked_pending_and_waiting(valkey_url, stream):
    with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
        nothing = read_backlog(client, (stream,), "ledger")
        for number in range(5):
            client.xadd(stream, {"data": str(number)})
        without_group = read_backlog(client, (stream,), "ledger")
        client.xgroup_create(stream, "ledger", id="0")
        unread = read_backlog(client, (stream,), "ledger")
        [(_name, entries)] = client.xreadgroup("ledger", "worker", {stream: ">"}, count=3)
        client.xack(stream, "ledger", entries[0][0])
        in_the_middle = read_backlog(client, (stream,), "ledger")

    assert nothing == Backlog()
    assert without_group == unread == Backlog(waiting=5)
    assert in_the_middle == Backlog(acked=1, pending=2, waiting=2)
    assert (in_the_middle.enqueued, in_the_middle.delivered) == (5, 3)


def test_a_worker_that_is_done_too_early_is_not_said_to_be_killed(tmp_path):
    with Processes(tmp_path, {}) as processes:
        child = processes.start("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"])
        with pytest.raises(DemoError, match="done before it could be killed"):
            kill_in_the_middle(child.pid, lambda: (10, Backlog(acked=10)), from_rows=5)
        assert child.is_running

    assert not child.is_running


def test_a_process_that_fails_is_quoted_and_its_children_are_ended(tmp_path):
    program = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "sys.exit('no luck today')"
    )
    with Processes(tmp_path, {}) as processes:
        child = processes.start("gambler", [sys.executable, "-c", program])
        with pytest.raises(DemoError, match=r"(?s)gambler ended with exit code 1.*no luck today"):
            child.wait(30)
        left = processes.left()

    assert len(left) == 1
    assert not left[0].is_running()


def test_missing_java_is_one_sentence_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(DemoError, match=r"^Spark needs Java 17 .* no Java .* JAVA_HOME: install .*--quick"):
        requirements.check_java()


def test_java_that_is_too_old_is_refused(tmp_path, monkeypatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(DemoError, match="is Java 8"):
        requirements.check_java()


def test_a_program_that_is_not_installed_is_named():
    with pytest.raises(DemoError, match="nowhere_to_be_found is not installed"):
        requirements.program("nowhere", "nowhere_to_be_found")
