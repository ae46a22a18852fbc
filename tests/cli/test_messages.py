"""`conquiet peek`, `show` and `tail`: messages as they are, on a real server."""

from __future__ import annotations

import itertools
import json
import signal
import threading

from tests.cli.processes import ended, read_line, running
from tests.cli.test_drain import drain, fill


def test_peek_shows_the_newest_messages_first_and_where_the_next_page_begins(run_on_each, topic):
    run_on_each("topics", "create", topic, "--partitions", "2")
    fill(run_on_each, topic, 12)

    first = run_on_each("peek", topic, "--json").json
    second = run_on_each("peek", topic, "--cursor", first["cursor"], "--json").json

    assert len(first["messages"]) == 10
    assert sorted(one["payload"]["n"] for one in first["messages"] + second["messages"]) == [*range(1, 13)]
    assert second["cursor"] is None
    shown = run_on_each("peek", topic, "--limit", "1", "--oldest")
    assert '{"n": ' in shown.out
    assert "More: --cursor" in shown.out


def test_peek_searches(run, topic):
    run("topics", "create", topic)
    for key, n in (("a", 1), ("b", 2), ("a", 3)):
        run("enqueue", topic, f'{{"n": {n}}}', "--key", key)

    assert [one["payload"]["n"] for one in run("peek", topic, "--key", "a", "--json").json["messages"]] == [
        3,
        1,
    ]
    assert [one["key"] for one in run("peek", topic, "--contains", '"n":2', "--json").json["messages"]] == [
        "b"
    ]
    assert run("peek", topic, "--since", "2099-01-01", "--json").json["messages"] == []
    assert run("peek", topic, "--since", "yesterday").code == 2
    assert run("peek", "nothing-of-this-name").code == 4


def test_an_empty_payload_is_shown_as_such(run, topic):
    run("topics", "create", topic)
    run("enqueue", topic, "{}")
    (message,) = run("peek", topic, "--json").json["messages"]

    assert run("show", topic, message["id"]).out.splitlines()[-1] == "{}"


def test_show_says_where_a_message_is(run, topic):
    run("topics", "create", topic)
    fill(run, topic, 2)
    drain(run, topic, "accept_alone", "--max-messages", "1")
    newest, oldest = (one["id"] for one in run("peek", topic, "--json").json["messages"])

    assert [one["state"] for one in run("show", topic, oldest, "--json").json["groups"]] == ["done"]
    assert [one["state"] for one in run("show", topic, newest, "--json").json["groups"]] == ["undelivered"]
    shown = run("show", topic, newest).out
    assert "billing:    undelivered" in shown
    assert '"n": 2' in shown
    assert run("show", topic, "1-1").code == 4
    assert run("show", topic, "no-id").code == 2


def test_pending_messages_are_shown_with_what_is_in_them(run, topic, valkey):
    run("topics", "create", topic)
    run("enqueue", topic, '{"n": 1}', "--key", "ann")
    fill(run, topic, 1)
    stream = f"stream:topic:{topic}:p:0"
    valkey.xgroup_create(stream, "billing", "0")
    (_, ((first, _), (second, _))) = valkey.xreadgroup("billing", "worker-1", {stream: ">"})[0]
    valkey.xdel(stream, second)

    entries = run("pending", topic, "-g", "billing", "--messages", "--json").json["entries"]
    shown = run("pending", topic, "-g", "billing", "--messages").out

    assert [(one["id"], one["message"] and one["message"]["payload"]) for one in entries] == [
        (first.decode(), {"n": 1}),
        (second.decode(), None),
    ]
    assert '{"n": 1}' in shown
    assert "ann" in shown
    assert "trimmed or deleted" in shown
    assert "message" not in run("pending", topic, "-g", "billing", "--json").json["entries"][0]


def test_tail_prints_new_messages_until_it_is_stopped(run, topic, valkey_url):
    run("topics", "create", topic)
    fill(run, topic, 3)
    is_seen = threading.Event()

    def send() -> None:
        # Again and again: the first ones may come before the command has begun.
        for number in itertools.count(100):
            run("enqueue", topic, json.dumps({"n": number}))
            if is_seen.wait(0.1):
                return

    with running("tail", topic, "--last", "0", "--json", "--url", valkey_url) as process:
        sender = threading.Thread(target=send)
        sender.start()
        line = read_line(process)
        is_seen.set()
        sender.join()
        code, out, err = ended(process, signal.SIGTERM)

    # None of those that were there before.
    numbers = [json.loads(one)["payload"]["n"] for one in (line, *out.splitlines())]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    assert numbers[0] >= 100
    assert (code, err) == (0, "")


def test_tail_begins_with_the_last_messages(run, topic, valkey_url):
    run("topics", "create", topic, "--partitions", "2")
    fill(run, topic, 5)

    with running("tail", topic, "-n", "2", "--json", "--url", valkey_url) as process:
        lines = [read_line(process), read_line(process)]
        code, out, err = ended(process, signal.SIGINT)

    shown = [one["id"] for one in run("peek", topic, "--limit", "2", "--json").json["messages"]]
    assert [json.loads(line)["id"] for line in lines] == shown[::-1]
    assert (code, out, err) == (0, "", "")
