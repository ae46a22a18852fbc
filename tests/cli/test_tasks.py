"""`conquiet tasks`, `workers` and `queues`, with a worker in this process."""

from __future__ import annotations

import json
import threading
import uuid

import pytest

from conquiet.tasks import TaskApp, Worker, WorkerConfig
from tests.eventually import HANG_S, eventually


@pytest.fixture
def tasks(valkey_url):
    """An app of the test's own; its namespace is given to each command."""
    with TaskApp(valkey_url, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as app:

        @app.task(name="add")
        def add(a: int, b: int = 1) -> int:
            return a + b

        @app.task(name="fail", max_retries=0)
        def fail() -> None:
            raise ValueError("redis://user:secret@host/0 is no number")

        yield app


@pytest.fixture
def conquiet(run, tasks):
    """Runs a command on the app's namespace, with JSON."""
    return lambda *words, **typed: run(*words, "--namespace", tasks.namespace, "--json", **typed)


@pytest.fixture
def worker(tasks):
    """A worker in threads."""
    with Worker(tasks, WorkerConfig(pool="thread", concurrency=2, heartbeat_ttl_s=20.0, name="w")) as started:
        yield started


def test_a_task_is_enqueued_by_name_and_its_result_waited_for(conquiet, worker):
    sent = conquiet("tasks", "enqueue", "add", '{"a": 2, "b": 5}')

    assert (sent.code, sent.json["queue"], sent.json["is_new"]) == (0, "default", True)
    result = conquiet("tasks", "result", sent.json["id"])
    assert (result.code, result.json["result"]) == (0, 7)
    shown = conquiet("tasks", "show", sent.json["id"])
    assert shown.json["state"] == "succeeded"
    assert [step["state"] for step in shown.json["history"]] == ["queued", "running", "succeeded"]


@pytest.mark.parametrize("arguments", ["no json", "[1]"])
def test_arguments_that_are_no_object_are_refused(conquiet, tasks, arguments):
    assert conquiet("tasks", "enqueue", "add", arguments).code == 2
    assert tasks.queues() == []


def test_a_task_that_fails_and_one_that_is_not_there_have_their_exit_codes(conquiet, worker):
    sent = conquiet("tasks", "enqueue", "fail")

    failed = conquiet("tasks", "result", sent.json["id"])

    assert failed.code == 1
    assert "secret" not in failed.err + conquiet("tasks", "show", sent.json["id"]).out
    for words in (("show",), ("result",), ("revoke", "--yes")):
        assert conquiet("tasks", words[0], "1700000000000-0", *words[1:]).code == 4
    assert conquiet("tasks", "retry", "1700000000000-0").code == 4


def test_a_result_that_does_not_come_in_time_is_a_failure(conquiet):
    sent = conquiet("tasks", "enqueue", "add", '{"a": 1}')

    assert conquiet("tasks", "result", sent.json["id"], "--timeout", "10ms").code == 1


def test_dead_letters_are_listed_and_retried(conquiet, worker, tasks):
    sent = conquiet("tasks", "enqueue", "fail")
    conquiet("tasks", "result", sent.json["id"])

    [letter] = conquiet("tasks", "list", "--where", "dead_lettered").json["tasks"]
    retried = conquiet("tasks", "retry", sent.json["id"])

    assert (letter["id"], letter["name"]) == (sent.json["id"], "fail")
    assert "secret" not in json.dumps(letter)
    [pair] = retried.json["tasks"]
    assert pair["new_id"] != sent.json["id"]
    assert conquiet("tasks", "result", pair["new_id"]).code == 1


def test_a_task_is_revoked_after_a_confirmation(conquiet, tasks):
    sent = conquiet("tasks", "enqueue", "add", '{"a": 1}', "--delay", "1h")

    assert conquiet("tasks", "revoke", sent.json["id"]).code == 6
    revoked = conquiet("tasks", "revoke", sent.json["id"], "--yes")
    again = conquiet("tasks", "revoke", sent.json["id"], "--yes")

    assert revoked.json["tasks"] == [
        {"task_id": sent.json["id"], "queue": "default", "is_revoked": True, "state_before": "queued"}
    ]
    assert (again.code, again.json["tasks"][0]["state_before"]) == (1, "revoked")
    assert conquiet("tasks", "show", sent.json["id"]).json["state"] == "revoked"


def test_tasks_are_listed_by_where_they_are(conquiet):
    for number in range(3):
        conquiet("tasks", "enqueue", "add", json.dumps({"a": number}))

    first = conquiet("tasks", "list", "--where", "queued", "--limit", "2").json
    rest = conquiet("tasks", "list", "--where", "queued", "--after", first["after"]).json

    assert (len(first["tasks"]), len(rest["tasks"]), rest["after"]) == (2, 1, None)
    assert conquiet("tasks", "list", "--where", "nowhere").code == 2


def test_queues_are_listed_with_their_figures(conquiet, run, tasks):
    conquiet("tasks", "enqueue", "add", '{"a": 1}', "--queue", "mail")
    conquiet("workers", "pause", "mail")

    [queue] = conquiet("queues").json["queues"]

    assert (queue["queue"], queue["queued"], queue["is_paused"]) == ("mail", 1, True)
    assert "mail (paused)" in run("queues", "--namespace", tasks.namespace).out


def test_a_queue_that_is_not_there_is_named(conquiet, tasks):
    conquiet("tasks", "enqueue", "add", '{"a": 1}')

    ran = conquiet("queues", "default", "list")

    assert (ran.code, ran.out) == (4, "")
    assert "there is no queue 'list'" in ran.error["message"]
    assert "`conquiet queues` lists them" in ran.error["message"]
    assert conquiet("queues", "default").code == 0


def test_workers_are_listed_asked_paused_and_stopped(conquiet, worker, tasks, run):
    begun, may_end = threading.Event(), threading.Event()

    @tasks.task(name="wait")
    def wait():
        begun.set()
        may_end.wait(HANG_S)

    conquiet("tasks", "enqueue", "wait")
    assert begun.wait(HANG_S)

    [listed] = conquiet("workers", "list").json["workers"]
    assert (listed["name"], listed["queues"], listed["pool"], listed["concurrency"]) == (
        "w",
        ["default"],
        "thread",
        2,
    )
    pinged = conquiet("workers", "ping", "--timeout", "10m")
    assert [task["name"] for task in pinged.json["workers"][0]["answer"]["active"]] == ["wait"]
    assert conquiet("workers", "ping", "absent", "--timeout", "10ms").code == 1
    may_end.set()
    assert conquiet("workers", "pause", "default", "--timeout", "10m").json["is_paused"] is True
    sent = conquiet("tasks", "enqueue", "add", '{"a": 1}')
    assert conquiet("workers", "rate", "add", "1/h", "--timeout", "10m").code == 0
    assert conquiet("workers", "rate", "add", "often").code == 2
    assert conquiet("workers", "rate", "add", "declared", "--timeout", "10m").code == 0
    assert conquiet("tasks", "show", sent.json["id"]).json["state"] == "queued"
    conquiet("workers", "resume", "default", "--timeout", "10m")
    assert conquiet("tasks", "result", sent.json["id"]).json["result"] == 2

    assert conquiet("workers", "stop").code == 2
    assert conquiet("workers", "stop", "--all").code == 6
    assert conquiet("workers", "stop", "--all", "--yes", "--timeout", "10m").code == 0
    worker.join()
    assert conquiet("workers", "list").json == {"workers": []}


def test_texts_for_people(run, tasks, worker):
    def shown(*words):
        ran = run(*words, "--namespace", tasks.namespace)
        assert ran.code == 0, ran.err
        return ran.out

    task_id = shown("tasks", "enqueue", "add", '{"a": 1}').split()[-1]

    assert shown("tasks", "result", task_id) == "2\n"
    assert "succeeded" in shown("tasks", "show", task_id)
    eventually(lambda: task_id in shown("tasks", "list"))
    assert "no answer" not in shown("workers", "ping", "--timeout", "10m")
    assert "thread" in shown("workers", "list")


def test_a_queue_that_was_never_used_is_named_when_it_is_paused(run, tasks):
    tasks.enqueue("add", {"a": 1}, queue="mail")

    for words in (("pause", "mial"), ("resume", "mial"), ("rate", "add", "5/s", "--queue", "mial")):
        out = run("workers", *words, "--namespace", tasks.namespace).out
        assert "Nothing was ever enqueued to queue 'mial': `conquiet queues` lists those that were." in out
    assert "Nothing was ever" not in run("workers", "pause", "mail", "--namespace", tasks.namespace).out
