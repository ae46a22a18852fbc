"""`conquiet schedule` and `conquiet beat`: schedules of a file, seen, changed, and enqueued by processes."""

from __future__ import annotations

import json
import re
import signal
import textwrap
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conquiet.queue import open_client
from conquiet.tasks import TaskApp
from conquiet.tasks.keys import BeatKeys
from tests.cli.processes import ended, read_line, running
from tests.eventually import HANG_S, eventually

TOML = """
[schedules.nightly-bill]
task = "shop.bill"
args = {order = 7}
options = {queue = "bills", priority = 9}
cron = "0 2 * * *"
tz = "Europe/Berlin"

[schedules.month-end]
topic = "reports"
payload = {kind = "month"}
calendar = "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=18"
start = 2026-01-01T00:00:00Z
"""
YAML = """
schedules:
  nightly-bill:
    task: shop.bill
    args: {order: 7}
    options: {queue: bills, priority: 9}
    cron: "0 2 * * *"
    tz: Europe/Berlin
  month-end:
    topic: reports
    payload: {kind: month}
    calendar: FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=18
    start: 2026-01-01T00:00:00Z
"""


@pytest.fixture
def namespace() -> str:
    return f"tasks-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def schedule(run, namespace):
    return lambda *words: run("schedule", *words, "--namespace", namespace, "--json")


def write(text: str, suffix: str = "toml") -> str:
    Path(f"schedules.{suffix}").write_text(text)
    return f"schedules.{suffix}"


def test_a_file_is_applied_and_applied_again_changes_nothing(schedule):
    applied = schedule("apply", write(TOML)).json["schedules"]
    again = schedule("apply", write(YAML, "yaml")).json["schedules"]

    assert {one["name"]: (one["outcome"], one["version"]) for one in applied} == {
        "nightly-bill": ("created", 1),
        "month-end": ("created", 1),
    }
    assert {(one["outcome"], one["version"]) for one in again} == {("unchanged", 1)}


def test_a_dry_run_of_apply_says_what_would_be_and_changes_nothing(schedule):
    schedule("apply", write(TOML))

    planned = schedule("apply", write(TOML.replace("0 2 *", "0 3 *")), "--dry-run").json["schedules"]

    assert {one["name"]: one["outcome"] for one in planned} == {
        "nightly-bill": "changed",
        "month-end": "unchanged",
    }
    assert schedule("show", "nightly-bill").json["definition"]["cron"] == "0 2 * * *"


def test_schedules_are_listed_and_shown_with_their_state(schedule):
    schedule("apply", write(TOML))

    listed = schedule("list").json
    shown = schedule("show", "nightly-bill").json

    assert [one["name"] for one in listed["schedules"]] == ["month-end", "nightly-bill"]
    assert (listed["stats"]["schedules"], listed["stats"]["leader"]) == (2, None)
    assert shown["definition"]["args"] == {"order": 7}
    assert (shown["runs"], shown["history"], shown["error"]) == (0, [], None)


def test_a_schedule_is_disabled_enabled_and_deleted(schedule):
    schedule("apply", write(TOML))

    assert schedule("disable", "nightly-bill").json["planned_ms"] is None
    assert schedule("enable", "nightly-bill").json["planned_ms"] > 0
    assert schedule("delete", "nightly-bill").code == 6
    assert schedule("delete", "nightly-bill", "--yes", "--if-version", 1).code == 4
    assert schedule("delete", "nightly-bill", "--yes", "--if-version", 3).json["is_deleted"]
    assert schedule("show", "nightly-bill").code == 4


def test_an_edit_of_another_version_is_refused(schedule):
    file = write("[schedules.s]\ntask = 't'\nevery_s = 60\n")
    assert schedule("apply", file, "--if-version", 0).json["schedules"][0]["version"] == 1

    refused = schedule("apply", file, "--if-version", 0)

    assert refused.code == 4
    assert "is at version 1" in refused.error["message"]
    assert schedule("apply", file, "--if-version", 0, "--dry-run").code == 4


def test_a_dry_run_says_that_a_definition_that_cannot_be_read_is_changed(schedule, valkey_url, namespace):
    file = write("[schedules.s]\ntask = 't'\nevery_s = 60\n")
    schedule("apply", file)
    with open_client(valkey_url) as client:
        client.hset(BeatKeys(namespace).schedule("s"), "definition", "no definition")

    assert schedule("apply", file, "--dry-run").json["schedules"][0]["outcome"] == "changed"
    assert schedule("apply", file).json["schedules"][0]["outcome"] == "changed"


def test_a_file_in_yaml_may_merge_one_schedule_into_another(schedule):
    text = "schedules:\n  a: &a {task: t, every_s: 60}\n  b: {<<: *a, every_s: 30}\n"
    schedule("apply", write(text, "yaml"))

    assert schedule("show", "b").json["definition"] == {"task": "t", "every_s": 30.0}


def test_the_next_times_are_shown_of_what_is_kept_and_of_a_file(schedule, run):
    schedule("apply", write(TOML))

    kept = schedule("next", "month-end", 3, "--after", "2026-01-01").json["schedules"]
    of_file = run("schedule", "dry-run", write(TOML), 3, "--after", "2026-01-01", "--json").json["schedules"]

    assert [one["planned_ms"] for one in kept[0]["times"]] == [1769796000000, 1772215200000, 1774980000000]
    assert kept[0] in of_file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("schedules = 3", "must have one table"),
        ("[schedules.s]\ntask = 't'\n", "schedule 's'.*needs one of cron"),
        ("[schedules.s]\ntask = 't'\ncron = '* *'\n", "no cron expression"),
        ("[schedules", "cannot be read"),
        ("schedules = " + "[" * 5_000, "nested too deeply"),
    ],
)
def test_a_wrong_file_is_refused_whole(schedule, text, reason):
    ran = schedule("apply", write(text))

    assert ran.code == 2
    assert re.search(reason, ran.error["message"])
    assert schedule("list").json["schedules"] == []


def test_arguments_that_do_not_fit_the_task_of_the_app_are_refused(schedule, run, namespace):
    Path("shop.py").write_text(APP.format(namespace=namespace))
    file = write("[schedules.s]\ntask = 'tick'\nevery_s = 60\nargs = {speed = 3}\n")

    refused = run("schedule", "apply", file, "--app", "shop.py:app", "--json")

    assert refused.code == 2
    assert "no parameter 'speed'" in refused.error["message"]


APP = """
from conquiet.tasks import TaskApp

app = TaskApp(namespace="{namespace}")


@app.task(name="tick", ignore_result=True)
def tick() -> None:
    pass


app.schedule("s", tick, every=1)
"""


@pytest.mark.parametrize("command", ["beat", "worker"])
def test_a_process_enqueues_what_its_app_declares(run, namespace, valkey_url, command):
    Path("shop.py").write_text(APP.format(namespace=namespace))
    words = [command, "shop.py:app", "--json"]
    if command == "worker":
        words += ["--beat", "--pool", "thread"]
    with (
        running(*words, CONQUIET_REDIS_URL=valkey_url) as process,
        TaskApp(valkey_url, namespace=namespace) as app,
    ):
        assert json.loads(read_line(process))["app"] == "shop.py:app"
        eventually(lambda: any(one.runs >= 2 for one in app.schedules.stored()))
        assert app.schedules.stats().leader is not None
        assert ended(process, signal.SIGTERM)[0] == 0
        assert app.schedules.stats().leader is None


def test_a_beat_without_a_schedule_says_how_to_declare_one(namespace, valkey_url):
    Path("shop.py").write_text(
        f"from conquiet.tasks import TaskApp\napp = TaskApp(namespace={namespace!r})\n"
    )
    with running("beat", "shop.py:app", CONQUIET_REDIS_URL=valkey_url) as process:
        lines = [read_line(process) for _ in range(4)]
        assert ended(process, signal.SIGTERM)[0] == 0

    assert "no schedule: app.schedule(" in lines[2]


@pytest.mark.parametrize("command", ["beat", "worker"])
def test_a_process_whose_beat_has_ended_by_itself_fails(run, namespace, valkey_url, command):
    code = """
    class Ending:
        def tick(self, *_arguments, **_options):
            raise SystemExit("no more")

    app.schedules.store = Ending()
    app.schedules.declared.clear()
    """
    Path("shop.py").write_text(APP.format(namespace=namespace) + textwrap.dedent(code))
    words = [command, "shop.py:app", "--json"]
    if command == "worker":
        words += ["--beat", "--pool", "thread"]
    with running(*words, CONQUIET_REDIS_URL=valkey_url) as process:
        _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 1
    assert "has ended by itself" in err


def test_when_the_leader_is_killed_another_process_goes_on_and_nothing_is_missed_or_doubled(
    run, namespace, valkey_url
):
    code = APP.format(namespace=namespace).replace("every=1", 'every=1, catch_up="all"')
    Path("shop.py").write_text(code)
    words = ("beat", "shop.py:app", "--lease-ttl", "2s", "--json", "--name")
    with ExitStack() as resources:
        app = resources.enter_context(TaskApp(valkey_url, namespace=namespace))
        beats = {
            name: resources.enter_context(running(*words, name, CONQUIET_REDIS_URL=valkey_url))
            for name in ("a", "b", "c")
        }

        def runs() -> int:
            return sum(one.runs for one in app.schedules.stored())

        leaders = []
        while beats:
            wanted = runs() + 2
            eventually(lambda: runs() >= wanted)  # noqa: B023 -- called here
            leader = app.schedules.stats().leader
            assert leader is not None
            leaders.append(leader)
            beats.pop(leader).kill()

    entries: Any = app.client.xrange(app.keys("default").streams[5])
    planned = [int(json.loads(fields[b"data"])["id"].split(":")[2]) for _, fields in entries]
    assert planned == list(range(planned[0], planned[-1] + 1, 1_000))
    assert sorted(leaders) == ["a", "b", "c"]
