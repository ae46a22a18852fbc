"""`conquiet drain` and `conquiet claim-stale`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue
from conquiet.mq import Topics, drain_partition

HANDLERS = "tests.cli.handlers"


@pytest.fixture
def database(tmp_path):
    return ("--database", f"sqlite:///{tmp_path}/effects.db")


def fill(run, name, count):
    assert run("enqueue", name, typed="".join(f'{{"n": {n}}}\n' for n in range(1, count + 1))).code == 0


def drain(run, name, handler, *more):
    return run(
        "drain", name, "--group", "billing", "--handler", f"{HANDLERS}:{handler}", "--idle", "50ms", *more
    )


def test_a_stream_is_drained_through_the_handler_and_its_report_is_shown(run_on_each, stream, database):
    fill(run_on_each, stream, 5)

    ran = drain(run_on_each, stream, "accept", *database, "--inbox", "--json")

    assert ran.code == 0
    assert (ran.json["kind"], ran.json["handled"], ran.json["failed"]) == ("stream", 5, 0)
    assert ran.json["stopped_by"] == "idle"


def test_payloads_are_of_the_type_that_is_named(run, stream, database):
    fill(run, stream, 3)
    assert run("enqueue", stream, typed='{"n": "no number"}\n').code == 0

    ran = drain(run, stream, "accept_numbered", *database, "--payload", f"{HANDLERS}:Numbered", "--json")

    assert (ran.code, ran.json["handled"], ran.json["failed"]) == (1, 3, 1)
    assert "PayloadTypeError: payload.n is a str, no int" in ran.err


def test_the_exit_code_says_that_messages_failed_and_the_others_are_handled(run, stream, database):
    fill(run, stream, 5)

    ran = drain(run, stream, "refuse_three", *database)

    assert ran.code == 1
    assert "4 handled, 1 failed" in ran.out
    assert "ValueError: no three" in ran.out


def test_on_error_raise_stops_at_the_first_failure_and_still_tells_the_report(run, stream, database):
    fill(run, stream, 5)

    ran = drain(run, stream, "refuse_three", *database, "--on-error", "raise", "--json")

    assert ran.code == 1
    assert (ran.json["handled"], ran.json["failed"], ran.json["stopped_by"]) == (2, 1, "error")
    assert "ValueError: no three" in ran.err


def test_a_log_in_json_names_the_message_that_failed(run, stream, database):
    fill(run, stream, 3)

    ran = drain(run, stream, "refuse_three", *database, "--log-format", "json")

    (line,) = map(json.loads, ran.err.splitlines())
    assert (line["level"], line["stream"], line["group"]) == ("warning", stream, "billing")
    assert line["message_id"] in line["message"]
    assert "ValueError: no three" in line["exception"]
    assert "trace_id" not in line


def test_a_message_that_was_delivered_too_often_is_a_dead_letter(run, stream, database):
    fill(run, stream, 3)
    drain(run, stream, "refuse_three", *database, "--consumer", "same")

    ran = drain(
        run, stream, "refuse_three", *database, "--consumer", "same", "--max-deliveries", "1", "--json"
    )

    assert (ran.code, ran.json["dead_lettered"]) == (1, 1)
    assert run("dlq", "list", stream, "--json").json["letters"][0]["payload"] == {"n": 3}


def test_a_drain_under_a_name_of_its_own_leaves_no_consumer_behind(run, stream, database):
    fill(run, stream, 2)
    drain(run, stream, "accept", *database)

    assert run("consumers", "list", stream, "--group", "billing", "--json").json["consumers"] == []


def test_max_messages_is_a_limit(run, stream, topic, database):
    run("topics", "create", topic, "--partitions", "2")
    for name in (stream, topic):
        fill(run, name, 6)

        assert drain(run, name, "accept", *database, "--max-messages", "4", "--json").json["handled"] == 4


def test_a_topic_is_drained_partition_by_partition_with_and_without_a_database(run_on_each, topic, database):
    run_on_each("topics", "create", topic, "--partitions", "2")
    fill(run_on_each, topic, 6)

    alone = drain(run_on_each, topic, "accept_alone", "--partition", "0", "--json")
    with_database = drain(run_on_each, topic, "accept", *database, "--json")

    assert (alone.json["partition"], with_database.json["partition"]) == (0, None)
    assert (alone.code, with_database.code) == (0, 0)
    assert alone.json["handled"] + with_database.json["handled"] == 6


def test_a_topic_is_drained_until_no_retry_waits(run, topic):
    run("topics", "create", topic, "--partitions", "2")
    fill(run, topic, 4)

    ran = drain(run, topic, "fail_once", "--until", "settled", "--json")

    assert (ran.json["handled"], ran.json["retried"], ran.json["busy"]) == (4, 4, [])
    assert run("stats", topic, "--json").json["topics"][0]["groups"][0]["pending"] == 0
    assert drain(run, topic, "accept_alone", "--until", "done").code == 2
    assert drain(run, topic, "accept_alone", "--until", "settled", "--partition", "0").code == 2


def test_a_new_group_of_a_stream_or_a_topic_begins_where_it_is_told(run, stream, topic, database):
    run("topics", "create", topic, "--partitions", "2")
    for name in (stream, topic):
        fill(run, name, 4)
        assert drain(run, name, "accept", *database, "--group-start", "end", "--json").json["read"] == 0
        fill(run, name, 2)
        # For a group that is there it means nothing.
        assert drain(run, name, "accept", *database, "--group-start", "end", "--json").json["handled"] == 2


def test_dead_letters_of_a_topic_make_the_exit_code_1(run, topic):
    run("topics", "create", topic)
    fill(run, topic, 2)

    ran = drain(run, topic, "give_up", "--json")

    assert (ran.code, ran.json["dead_lettered"]) == (1, 2)


def test_a_partition_in_other_hands_is_told(run, topic, valkey):
    run("topics", "create", topic)
    fill(run, topic, 1)
    codes = []

    def drain_meanwhile(msg):
        codes.append(drain(run, topic, "accept_alone", "--json"))

    limits = DrainLimits(max_messages=1, idle_ms=50)
    drain_partition(Topics(valkey).open(topic), 0, "billing", drain_meanwhile, limits=limits)

    (ran,) = codes
    assert (ran.code, ran.json["busy"]) == (4, [0])


def test_a_handler_that_cannot_be_found_is_a_usage_error(run, stream, database):
    for reference in ("nowhere:bill", "tests.cli.handlers:nothing", "no-colon"):
        ran = run("drain", stream, "-g", "billing", "--handler", reference, *database)

        assert ran.code == 2
        assert ran.err.startswith("conquiet: ")


def test_a_handler_is_found_in_the_directory_where_the_command_is_run(run, stream, database, tmp_path):
    (tmp_path / "my_handlers_of_today.py").write_text("def bill(msg, session):\n    pass\n")
    fill(run, stream, 1)

    ran = run(
        "drain",
        stream,
        "-g",
        "billing",
        "--handler",
        "my_handlers_of_today:bill",
        *database,
        "--idle",
        "50ms",
    )

    assert ran.code == 0


def test_a_stream_without_a_database_or_a_group_is_a_usage_error(run, stream, database):
    no_group = run("drain", stream, "--handler", f"{HANDLERS}:accept", *database)
    no_database = run("drain", stream, "-g", "billing", "--handler", f"{HANDLERS}:accept")

    assert (no_group.code, no_database.code) == (2, 2)
    assert "--group" in no_group.err
    assert "--database" in no_database.err


def test_a_database_that_cannot_be_used_has_its_own_exit_code(run, stream, tmp_path):
    fill(run, stream, 1)
    for url in (f"sqlite:///{tmp_path}/no/such/dir/x.db", "nonsense", "oracle+nothing://u:tr0ub4dor@h/x"):
        ran = drain(run, stream, "accept", "--database", url, "--inbox")

        assert ran.code == 5, ran.err
        assert "tr0ub4dor" not in ran.err


@pytest.fixture
def left_behind(run, stream, valkey_url):
    """Two messages that are pending at a dead consumer."""
    fill(run, stream, 2)
    with RedisStreamsQueue.from_url(valkey_url, QueueConfig(stream, "billing", "dead")) as queue:
        return [msg.id for msg in queue.read(50, count=2)]


def test_claim_stale_tells_what_it_would_claim(run, stream, left_behind, valkey):
    ran = run("claim-stale", stream, "-g", "billing", "--min-idle", "0ms", "--dry-run", "--json")

    assert ran.json == {
        "stream": stream,
        "group": "billing",
        "claimed": 2,
        "ids": left_behind,
        "is_dry_run": True,
    }
    assert {row["consumer"] for row in valkey.xpending_range(stream, "billing", "-", "+", 10)} == {b"dead"}


def test_claim_stale_handles_what_a_dead_consumer_left(run, stream, left_behind, database, valkey):
    arguments = ("claim-stale", stream, "-g", "billing", "--handler", f"{HANDLERS}:accept", *database)
    too_young = run(*arguments, "--min-idle", "1h", "--json")
    taken = run(*arguments, "--min-idle", "0ms", "--json")

    assert (too_young.json["handled"], taken.json["handled"]) == (0, 2)
    assert valkey.xpending(stream, "billing")["pending"] == 0


def test_claim_stale_gives_them_to_another_consumer(run, stream, left_behind, valkey):
    ran = run("claim-stale", stream, "-g", "billing", "--min-idle", "0ms", "--to", "anna", "--json")

    assert ran.json["ids"] == left_behind
    assert {row["consumer"] for row in valkey.xpending_range(stream, "billing", "-", "+", 10)} == {b"anna"}


def test_claim_stale_creates_nothing_and_is_not_for_topics(run, stream, topic, valkey):
    run("topics", "create", topic)

    assert run("claim-stale", stream, "-g", "billing", "--to", "anna").code == 4
    assert not valkey.exists(stream)
    assert run("claim-stale", topic, "-g", "billing", "--to", "anna").code == 2


def test_a_handler_that_ends_the_process_is_reported_and_exits_with_1(run, stream, database):
    fill(run, stream, 3)

    ran = drain(run, stream, "exit_quietly", "--json", *database)

    assert ran.code == 1
    assert "SystemExit" in ran.err
    assert (ran.json["failed"], ran.json["handed_back"], ran.json["read"]) == (0, 3, 3)


def test_a_drain_purges_the_inbox_of_what_is_older_than_asked_for(run, stream, tmp_path):
    url = f"sqlite:///{tmp_path}/orders.db"
    run("enqueue", stream, '{"n": 1}')
    drain(run, stream, "accept", "--database", url, "--inbox")
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        connection.execute("UPDATE conquiet_inbox SET handled_at_ms = 1")
        connection.commit()

    ran = drain(run, stream, "accept", "--database", url, "--inbox", "--inbox-keep", "30d", "--json")

    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        (left,) = connection.execute("SELECT count(*) FROM conquiet_inbox").fetchone()
    assert (ran.code, left) == (0, 0)


def test_a_time_to_keep_the_inbox_needs_an_inbox(run, stream, tmp_path):
    run("enqueue", stream, '{"n": 1}')

    ran = drain(run, stream, "accept", "--database", f"sqlite:///{tmp_path}/orders.db", "--inbox-keep", "30d")

    assert (ran.code, "--inbox-keep is for --inbox" in ran.err) == (2, True)


def test_several_messages_of_a_stream_are_handled_at_once(run_on_each, stream, database):
    fill(run_on_each, stream, 4)

    more = (*database, "--concurrency", "2", "--no-order", "--json")
    ran = drain(run_on_each, stream, "wait_for_another", *more)

    assert (ran.code, ran.json["handled"]) == (0, 4)


def test_several_messages_of_a_topic_are_handled_at_once(run, topic):
    run("topics", "create", topic)
    fill(run, topic, 4)

    ran = drain(run, topic, "wait_for_another", "--concurrency", "2", "--no-order", "--json")

    assert (ran.code, ran.json["handled"]) == (0, 4)


def test_messages_of_one_customer_are_handled_one_after_the_other(run, stream, database):
    customers = "".join(f'{{"customer": "{customer}"}}\n' for customer in "aabb")
    assert run("enqueue", stream, typed=customers).code == 0

    more = (*database, "--concurrency", "4", "--order-by", "customer", "--json")
    ran = drain(run, stream, "wait_for_another_customer", *more)

    assert (ran.code, ran.json["handled"]) == (0, 4)


def test_a_batch_handler_is_given_as_many_messages_as_its_batches_have(run, stream, database):
    fill(run, stream, 5)

    ran = drain(run, stream, "note_size", *database, "--batch-size", "2", "--inbox", "--json")

    assert (ran.code, ran.json["handled"]) == (0, 5)
    with closing(sqlite3.connect(database[1].removeprefix("sqlite:///"))) as connection:
        assert connection.execute("SELECT n FROM sizes").fetchall() == [(2,), (2,), (1,)]
