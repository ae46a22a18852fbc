"""`conquiet dev`: starts what a project names, and leaves nothing of it running, however it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from conquiet.cli.dev import sessions
from conquiet.mq import Topics
from conquiet.queue import open_client
from conquiet.tasks import TaskApp
from tests.cli.processes import ended, exists, read_line, running, started
from tests.eventually import HANG_S, eventually
from tests.services import need_java

#: Starts a child that leaves its session, and one that ignores SIGTERM; then waits.
FAMILY = """
import os, pathlib, signal, subprocess, sys, time
wait = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
children = [
    subprocess.Popen([sys.executable, "-c", wait], start_new_session=True).pid,
    subprocess.Popen([sys.executable, "-c", wait]).pid,
]
pathlib.Path("pids").write_text(" ".join(map(str, [os.getpid(), *children])))
print("url", os.environ["CONQUIET_REDIS_URL"], os.environ["KEPT"], flush=True)
time.sleep(3600)
"""
PLAN = """
setup = ["python -c 'open(\\"made\\", \\"w\\")'"]
web_port = 8080
[processes]
family = "python family.py"
[environment]
KEPT = "${project}/kept"
[links]
Page = "http://127.0.0.1:${web_port}"
"""


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "family.py").write_text(FAMILY)
    (tmp_path / "conquiet-dev.toml").write_text(PLAN)
    return tmp_path


def pids_of(project: Path) -> list[int]:
    path = project / "pids"
    eventually(lambda: path.exists() and path.read_text())
    return [int(word) for word in path.read_text().split()]


def are_gone(pids: list[int]) -> bool:
    return not any(map(exists, pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_running_when_it_ends_or_is_killed(project, number):
    with running("dev", project, "--json") as process:
        shown = json.loads(read_line(process))
        family = pids_of(project)
        with open_client(shown["redis_url"]) as client:
            assert client.ping()

        code, _, err = ended(process, number)
        eventually(lambda: not any(map(exists, family)))

    assert (project / "made").exists()
    assert shown["links"]["Page"].startswith("http://127.0.0.1:")
    if number == signal.SIGINT:
        assert code == 0, err
        assert f"family | url {shown['redis_url']} {project}/kept" in err


def test_it_runs_again_after_a_kill_with_the_data_of_before(project):
    urls = []
    for number in (signal.SIGKILL, signal.SIGINT):
        (project / "pids").unlink(missing_ok=True)
        with running("dev", project, "--json") as process:
            url = json.loads(read_line(process))["redis_url"]
            urls.append(url)
            family = pids_of(project)
            with open_client(url) as client:
                if number == signal.SIGKILL:
                    client.xadd("orders", {"data": "{}"})
                assert client.xlen("orders") == 1
            ended(process, number)
        eventually(partial(are_gone, family))

    assert urls[0] == urls[1]


def test_a_process_that_ends_by_itself_ends_the_others(project):
    plan = (project / "conquiet-dev.toml").read_text()
    (project / "conquiet-dev.toml").write_text(
        plan.replace("[environment]", "brief = \"python -c 'raise SystemExit(3)'\"\n[environment]")
    )
    with running("dev", project) as process:
        _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 1
    assert "brief has ended with exit code 3" in err
    # It may have been ended before it had written them.
    if (project / "pids").exists():
        eventually(lambda: not any(map(exists, pids_of(project))))


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (None, "there is no conquiet-dev.toml"),
        ("[processes]\n", "has no process"),
        ("setup = 'x'\n[processes]\na = 'b'\n", "setup must be a list"),
        ("[process]\na = 'b'\n", "process is not known; known are web_port, setup"),
        ("[processes]\na = 'b ${redis}'\n", "cannot be filled in, at 'redis'; known are ${project}"),
        ("[processes]\na = 'no-such-command'\n", "'no-such-command' of a is not there"),
        ("not toml", "cannot be read"),
    ],
)
def test_a_plan_that_cannot_be_run_is_said(anywhere, tmp_path, plan, sentence):
    if plan is not None:
        (tmp_path / "conquiet-dev.toml").write_text(plan)

    ran = anywhere("dev", tmp_path)

    assert ran.code == 2
    assert sentence in ran.err


def test_the_project_of_tasks_runs_and_starts_again_when_its_code_changes(anywhere, tmp_path):
    project = tmp_path / "shop"
    assert anywhere("init", "tasks", project).code == 0
    with running("dev", project, "--json") as process:
        shown = json.loads(read_line(process))
        with TaskApp(shown["redis_url"]) as app:
            assert app.enqueue("shop.bill", {"order_id": "o-1", "cents": 500}).result(HANG_S) == 500
            code = (project / "shop.py").read_text()
            (project / "shop.py").write_text(code.replace("Hello", "Goodbye"))
            greet = lambda: app.enqueue("shop.greet", {"name": "Ann"}).result(HANG_S)  # noqa: E731
            eventually(lambda: greet() == "Goodbye Ann")
            code, _, err = ended(process, signal.SIGINT)
    with closing(sqlite3.connect(shown["database_url"].removeprefix("sqlite:///"))) as connection:
        bills = list(connection.execute("SELECT order_id, cents FROM bills"))

    assert code == 0, err
    assert bills == [("o-1", 500)]
    assert not any(map(exists, shown["pids"].values()))


#: What a new project makes of the order of its README. An Airflow of its own would take minutes here.
BILLS = [("o-1", 500)]
TOTALS = [{"customer": "c-1", "cents": 500, "orders": 1}]
_ENQUEUED = re.compile(r"^\$ conquiet (enqueue orders '[^']*')", re.MULTILINE)


def bills_of(shown: dict[str, Any]) -> list[Any]:
    with closing(sqlite3.connect(shown["database_url"].removeprefix("sqlite:///"))) as connection:
        return list(connection.execute("SELECT order_id, cents FROM bills"))


def totals_of(shown: dict[str, Any]) -> list[Any]:
    with open_client(shown["redis_url"]) as client:
        topic = Topics(client).open("totals")
        entries: Any = [
            one for number in topic.partitions for one in client.xrange(topic.keys.stream(number))
        ]
    return [json.loads(fields[b"data"])["payload"] for _, fields in entries]


@pytest.mark.parametrize(
    ("kind", "seen", "wanted"),
    [
        pytest.param("dagster", bills_of, BILLS, marks=pytest.mark.xdist_group("orchestrators")),
        pytest.param("spark", totals_of, TOTALS, marks=pytest.mark.xdist_group("spark")),
    ],
)
def test_a_project_handles_the_order_of_its_readme_and_leaves_nothing_running(
    anywhere, tmp_path, monkeypatch, kind, seen, wanted
):
    if kind == "spark":
        need_java()
    # As in a terminal of a user: this process may have an Airflow and a Dagster of its own.
    for name in [name for name in os.environ if name.startswith(("AIRFLOW", "DAGSTER_", "PYTHONPATH"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    project, log = tmp_path / "shop", tmp_path / "dev.log"
    assert anywhere("init", kind, project).code == 0
    [enqueue, *_] = _ENQUEUED.findall((project / "README.md").read_text())
    with log.open("w") as errors, started(("dev", project, "--json"), {}, errors) as process:
        shown = json.loads(read_line(process))
        monkeypatch.setenv("CONQUIET_REDIS_URL", shown["redis_url"])
        assert anywhere(*shlex.split(enqueue)).code == 0

        eventually(lambda: seen(shown))
        last = seen(shown)
        family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        code, _, _ = ended(process, signal.SIGINT)
        eventually(partial(are_gone, family))

    assert code == 0, log.read_text()
    assert last == wanted
    assert len(family) > 1


def test_a_process_of_another_run_is_not_ended():
    assert sessions.end_all("no such mark", {2**22}, grace_s=0) == []
    assert exists(os.getpid())
