"""Queues of tasks with the commands that operators know: doctor, stats, dlq; dead letters of tasks."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conquiet import EmbeddedServer
from conquiet.queue import open_client
from conquiet.queue.connection import as_text
from conquiet.tasks import DirectoryPayloads, TaskApp, TaskFailedError, Worker, WorkerConfig, chain
from conquiet.tasks.canvas.follow_ups import FollowUps
from conquiet.tasks.keys import GROUP
from tests.eventually import HANG_S, eventually

LONG_AGO_MS = 10 * 60_000


@pytest.fixture
def server():
    """A server of the test's own: what is on it as a whole is looked at."""
    with EmbeddedServer(appendonly=True, args=["--appendfsync", "always"]) as started:
        yield started


@pytest.fixture
def tasks(server):
    with TaskApp(server.url) as app:

        @app.task(name="add", queue="mail")
        def add(a: int, b: int = 1) -> int:
            return a + b

        @app.task(name="fail", queue="mail", max_retries=0)
        def fail(number: int) -> None:
            raise KeyError(number) if number % 2 else ValueError("redis://user:secret@host/0 is no number")

        yield app


@pytest.fixture
def conquiet(anywhere, server):
    return lambda *words: anywhere(*words, "--url", server.url, "--json")


def working(app: TaskApp) -> Worker:
    return Worker(app, WorkerConfig(queues=("mail",), pool="thread", concurrency=1, heartbeat_ttl_s=20.0))


@pytest.fixture
def letters(tasks):
    """The ids of four tasks that are dead letters."""
    handles = tasks.tasks["fail"].enqueue_many({"number": number} for number in range(4))
    with working(tasks):
        for handle in handles:
            with suppress(TaskFailedError):
                handle.result(HANG_S)
    return [handle.id for handle in handles]


def problems(ran) -> dict[str, str]:
    """What the doctor says of the queue, by check."""
    findings = [one for one in ran.json["findings"] if one["subject"] == "queue mail"]
    return {one["check"]: one["text"] for one in findings if one["level"] != "ok"}


def test_the_doctor_finds_tasks_without_a_worker_and_a_paused_queue(conquiet, tasks):
    tasks.tasks["add"].enqueue(1)
    tasks.control.pause("mail")

    ran = conquiet("doctor")

    assert ran.code == 8
    assert problems(ran) == {
        "paused": "the queue is paused, and 1 tasks are in it",
        "workers": "1 tasks are in the queue, and no worker reads it",
    }
    assert problems(conquiet("doctor", "mail")) == problems(ran)


def test_the_doctor_is_content_with_a_queue_that_is_worked_off(conquiet, tasks):
    with working(tasks):
        assert tasks.tasks["add"].enqueue(1).result(HANG_S) == 2
        ran = conquiet("doctor")

    assert ran.code == 0, ran.out
    assert problems(ran) == {}


def test_the_doctor_finds_dead_letters_and_says_what_to_do(conquiet, letters):
    ran = conquiet("doctor")

    [finding] = [one for one in ran.json["findings"] if one["check"] == "dead-letters"]
    assert finding["text"] == "4 tasks are dead letters, neither retried nor purged"
    words = finding["to_do"].partition(";")[0].split()
    assert len(conquiet(*words[1:]).json["tasks"]) == 4


def test_the_doctor_finds_a_worker_without_a_heartbeat_and_what_is_overdue(conquiet, tasks):
    keys = tasks.keys("mail")
    tasks.tasks["add"].enqueue(1)
    tasks.client.execute_command("XREADGROUP", "GROUP", GROUP, "dead.0.1", "STREAMS", keys.streams[5], ">")
    later = tasks.tasks["add"].with_options(delay_s=3600).enqueue(1)
    tasks.client.zincrby(keys.delayed, -3_600_000 - LONG_AGO_MS, later.id)

    found = problems(conquiet("doctor"))

    assert found["dead-worker"] == "worker dead.0.1 has 1 tasks and no heartbeat"
    assert found["overdue"].startswith("1 delayed tasks are overdue, the oldest for ")


def test_the_doctor_finds_what_a_dead_worker_left_to_follow(conquiet, tasks, monkeypatch):
    add = tasks.tasks["add"]
    keys = tasks.keys("mail")
    with monkeypatch.context() as patched:
        # As if it died between the settle and what follows.
        patched.setattr(FollowUps, "perform", lambda *_: None)
        chain(add.call(1), add.partial()).enqueue()
        with working(tasks):
            eventually(lambda: tasks.client.hlen(keys.follow_ups))
    assert "follow-ups" not in problems(conquiet("doctor"))

    [(task_id, text)] = tasks.client.hgetall(keys.follow_ups).items()
    facts = json.loads(text)
    tasks.client.hset(keys.follow_ups, task_id, json.dumps(facts | {"at": facts["at"] - LONG_AGO_MS / 1000}))

    assert "on 1 tasks of canvases" in problems(conquiet("doctor"))["follow-ups"]


def test_the_doctor_looks_at_a_topic_and_a_queue_of_one_name(conquiet, tasks):
    tasks.tasks["add"].enqueue(1)
    conquiet("topics", "create", "mail")

    subjects = {one["subject"] for one in conquiet("doctor", "mail").json["findings"]}

    assert {"mail", "queue mail"} <= subjects
    assert conquiet("doctor", "nowhere").code == 4


def test_queues_of_another_namespace_are_looked_at_by_its_name(conquiet, server):
    with TaskApp(server.url, namespace="shop") as app:
        app.enqueue("bill", queue="mail")

    assert problems(conquiet("doctor")) == {}
    assert "workers" in problems(conquiet("doctor", "--namespace", "shop"))
    assert conquiet("stats", "--namespace", "shop").json["queues"][0]["queued"] == 1


def test_where_the_queues_may_not_be_read_the_doctor_says_so_and_goes_on(anywhere, tasks, server):
    tasks.tasks["add"].enqueue(1)
    with open_client(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "guest", "on", ">tr0ub4dor", "~streaming:*", "+@all")

    url = f"redis://guest:tr0ub4dor@127.0.0.1:{server.port}/0"
    ran, stats = anywhere("doctor", "--url", url, "--json"), anywhere("stats", "--url", url, "--json")

    assert ran.code == 0, ran.err
    [finding] = [one for one in ran.json["findings"] if one["check"] == "queues"]
    assert finding["text"] == "queues of tasks are not checked: an ACL forbids to read tasks:queues"
    assert stats.json == {"topics": [], "queues": None}


def test_stats_show_queues_beside_topics(conquiet, anywhere, tasks, server):
    conquiet("topics", "create", "orders")
    tasks.tasks["add"].enqueue(1)

    everything, one = conquiet("stats").json, conquiet("stats", "mail").json

    assert [topic["name"] for topic in everything["topics"]] == ["orders"]
    assert [(queue["queue"], queue["queued"]) for queue in everything["queues"]] == [("mail", 1)]
    assert (one["topics"], one["queues"][0]["queue"]) == ([], "mail")
    shown = anywhere("stats", "--url", server.url).out
    assert "orders" in shown
    assert "mail" in shown
    assert conquiet("stats", "nowhere").code == 4


@pytest.mark.parametrize(
    "words", [("list",), ("show", "1-1"), ("replay", "--all"), ("purge", "--all"), ("trim", "--keep", "1")]
)
def test_dlq_says_how_dead_letters_of_tasks_are_seen(conquiet, letters, words):
    ran = conquiet("dlq", words[0], "mail", *words[1:])

    assert ran.code == 2
    assert "tasks list --queue mail --where dead_lettered" in ran.error["message"]


def test_dlq_of_a_topic_with_the_name_of_a_queue_is_the_topics(conquiet, letters):
    conquiet("topics", "create", "mail")

    assert conquiet("dlq", "list", "mail").json["count"] == 0


def test_dead_letters_are_listed_with_their_errors(anywhere, letters, server):
    shown = anywhere("tasks", "list", "-q", "mail", "--where", "dead_lettered", "--url", server.url).out

    assert "KeyError: 1" in shown
    assert "secret" not in shown


def test_a_dead_letter_is_shown_after_the_record_of_its_task_has_expired(conquiet, letters, tasks):
    before = conquiet("tasks", "show", letters[1]).json
    tasks.client.delete(tasks.keys("mail").record(letters[1]))

    after = conquiet("tasks", "show", letters[1]).json

    assert (after["state"], after["error"], after["name"]) == ("dead_lettered", "KeyError: 1", "fail")
    assert (after["args"], after["attempt"]) == ({"number": 1}, 0)
    assert "raise KeyError" in after["traceback"]
    assert before.keys() <= after.keys()
    assert conquiet("tasks", "show", "1700000000000-0").code == 4


def test_all_dead_letters_of_one_error_are_retried_after_a_confirmation(conquiet, letters):
    words = ("tasks", "retry", "-q", "mail", "--all", "--error-type", "KeyError")

    tried, refused, done = conquiet(*words, "--dry-run"), conquiet(*words), conquiet(*words, "--yes")

    assert [one["id"] for one in tried.json["tasks"]] == [letters[1], letters[3]]
    assert (tried.json["is_dry_run"], refused.code, done.code) == (True, 6, 0)
    assert [one["id"] for one in done.json["tasks"]] == [letters[1], letters[3]]
    assert conquiet("queues", "mail").json["queues"][0]["dead_letters"] == 2
    assert conquiet("queues", "mail").json["queues"][0]["queued"] == 2
    assert conquiet(*words, "--yes").json["tasks"] == []


@pytest.mark.parametrize("words", [(), ("1-1", "--all"), ("1-1", "--task", "fail"), ("1-1", "--dry-run")])
def test_retry_needs_ids_or_all(conquiet, words):
    assert conquiet("tasks", "retry", *words).code == 2


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (("--task", "fail"), 4),
        (("--task", "add"), 0),
        (("--limit", "3"), 3),
        (("--since", "2100-01-01"), 0),
        (("--until", "2001-01-01"), 0),
        (("--error-type", "ValueError", "--per-second", "1000"), 2),
    ],
)
def test_dead_letters_to_retry_are_chosen(conquiet, letters, filters, count):
    ran = conquiet("tasks", "retry", "-q", "mail", "--all", "--yes", *filters)

    assert (ran.code, len(ran.json["tasks"])) == (0, count)


def test_a_letter_that_cannot_be_retried_stays_and_is_named(conquiet, letters, tasks):
    tasks.client.xadd(tasks.keys("mail").dead_letters, {"data": "not a letter"})

    ran = conquiet("tasks", "retry", "-q", "mail", "--all", "--yes")

    assert (ran.code, len(ran.json["tasks"]), len(ran.json["refused"])) == (1, 4, 1)
    assert conquiet("queues", "mail").json["queues"][0]["dead_letters"] == 1


def test_stored_payloads_that_nothing_needs_are_purged(conquiet, server, tmp_path):
    directory = tmp_path / "payloads"
    DirectoryPayloads(directory).create()
    code = "from conquiet.tasks import DirectoryPayloads, TaskApp\n"
    code += f"app = TaskApp(max_bytes=1000)\napp.payload_store = DirectoryPayloads({str(directory)!r})\n"
    Path("stored.py").write_text(code)
    with TaskApp(server.url, max_bytes=1000) as app:
        app.payload_store = DirectoryPayloads(directory)
        _, not_needed = (app.enqueue("add", {"a": "x" * 2000}, queue="mail") for _ in range(2))
        client: Any = app.client
        stream = app.keys("mail").streams[5]
        client.xdel(stream, client.xrange(stream)[1][0])
        client.delete(app.keys("mail").record(not_needed.id))

    def purge(*words) -> int:
        return conquiet("tasks", "purge-payloads", "-q", "mail", "--app", "stored.py:app", *words).json[
            "purged"
        ]

    assert conquiet("tasks", "purge-payloads", "-q", "mail", "--yes").code == 2
    assert purge("--yes") == purge("--older-than", "1h", "--yes") == 0
    assert purge("--older-than", "0s", "--dry-run") == 1
    assert purge("--older-than", "0s", "--yes") == 1
    assert len(list(directory.glob("*/*"))) == 1


def test_a_purge_of_stored_payloads_goes_on_after_one_that_cannot_be_deleted_and_fails(
    conquiet, server, tmp_path
):
    directory = tmp_path / "payloads"
    DirectoryPayloads(directory).create()
    code = "from conquiet.tasks import DirectoryPayloads, TaskApp\n"
    code += f"app = TaskApp(max_bytes=1000)\napp.payload_store = DirectoryPayloads({str(directory)!r})\n"
    Path("stored.py").write_text(code)
    with TaskApp(server.url, max_bytes=1000) as app:
        app.payload_store = DirectoryPayloads(directory)
        for _ in range(3):
            app.enqueue("add", {"a": "x" * 2000}, queue="mail")
        app.client.delete(app.keys("mail").streams[5], *app.client.scan_iter("tasks:{mail}:task:*"))
        first = as_text(min(app.client.hkeys(app.keys("mail").payloads)))
    # A directory is no file that can be deleted.
    file = directory / first[:2] / first
    file.unlink()
    file.mkdir()

    words = ("tasks", "purge-payloads", "-q", "mail", "--app", "stored.py:app", "--older-than", "0s", "--yes")
    ran = conquiet(*words)

    assert ran.code == 1
    assert "2 payloads of queue 'mail' were deleted, 1 could not be" in ran.err
    assert first in ran.err
    assert list(directory.glob("*/*")) == [file]
    file.rmdir()
    assert conquiet(*words).json["purged"] == 1


def test_dead_letters_are_purged_by_id_by_age_and_all(conquiet, letters):
    def purge(*words) -> int:
        return conquiet("tasks", "purge", "-q", "mail", *words, "--yes").json["purged"]

    assert conquiet("tasks", "purge", "-q", "mail").code == 2
    assert conquiet("tasks", "purge", "-q", "mail", "--all").code == 6
    assert conquiet("tasks", "purge", "-q", "mail", "--all", "--dry-run").json["purged"] == 4
    assert purge("--older-than", "1h") == 0
    assert purge(letters[0], "1700000000000-0") == 1
    assert purge("--all") == 3
    assert purge("--all") == 0
