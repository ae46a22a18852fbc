"""`conquiet worker`, as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conquiet.cli.worker_metrics import ProcessesCollector
from conquiet.embedded.ports import is_free
from conquiet.tasks import TaskApp, TaskFailedError
from tests.cli.first_task import first_task
from tests.cli.processes import ended, exists, read_line, running
from tests.eventually import HANG_S, eventually
from tests.services import free_port

#: The README's: one file, and a result on the screen.
HELLO = first_task("README.md").replace("timeout_s=60", "timeout_s=600")

WAITING = """
import os, time
from pathlib import Path
from conquiet.embedded.ports import is_free
from conquiet.tasks import TaskApp

app = TaskApp(namespace={namespace!r})


@app.task(max_retries=0)
def wait_for(path: str) -> str:
    Path(path + ".begun").write_text(str(os.getpid()))
    while not Path(path).exists():
        time.sleep(0.01)
    return "done"
"""


@pytest.fixture
def own_url(monkeypatch) -> str:
    """Where nothing listens."""
    url = f"redis://127.0.0.1:{free_port()}/0"
    monkeypatch.setenv("CONQUIET_REDIS_URL", url)
    return url


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = read_line(process)
        if not line:
            _, err = process.communicate(timeout=HANG_S)
            pytest.fail(f"it ended with exit code {process.returncode} after {lines}:\n{err}")
        lines.append(line)
    return lines


def enqueued() -> str:
    done = subprocess.run(
        [sys.executable, "hello.py"], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_newcomer_sees_a_result_and_his_next_version(own_url, tmp_path):
    Path("hello.py").write_text(HELLO)

    with running("worker", "--dev", "hello.py:app", "--concurrency", 1) as process:
        lines = read_until(process, "Ctrl-C stops it")
        first = enqueued()
        Path("hello.py").write_text(HELLO.replace("Hello", "Good morning"))
        read_until(process, "Ctrl-C stops it")
        second = enqueued()
        code, _, err = ended(process, signal.SIGINT)

    assert code == 0, err
    assert own_url.removesuffix("/0") in lines[0]
    assert "tasks    hello.greet\n" in lines
    assert (first, second) == ("Hello Ann\n", "Good morning Ann\n")
    assert "task hello.greet" in err
    assert "a file has changed" in err
    assert "DEBUG conquiet" in err
    assert "DEBUG redis" not in err


def figures_at(url: str) -> dict[str, float]:
    """Of all tasks and queues together."""
    with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.1"), timeout=HANG_S) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_the_metrics_of_all_children_are_served(valkey_url, tmp_path):
    namespace = f"cli-{uuid.uuid4().hex[:8]}"
    Path("shop.py").write_text(WAITING.format(namespace=namespace))
    paths = [tmp_path / name for name in ("a", "b")]
    arguments = ("shop:app", "--concurrency", 2, "--metrics-port", 0, "--json")

    with (
        TaskApp(valkey_url, namespace=namespace) as app,
        running("worker", *arguments, CONQUIET_REDIS_URL=valkey_url) as process,
    ):
        url = json.loads(read_line(process))["metrics"]
        handles = [app.enqueue("shop.wait_for", {"path": str(path)}) for path in paths]
        eventually(lambda: figures_at(url).get("conquiet_tasks_in_flight") == 2)
        for path in paths:
            path.touch()
        assert [handle.result(HANG_S) for handle in handles] == ["done", "done"]
        eventually(lambda: figures_at(url).get("conquiet_tasks_succeeded_total") == 2)
        eventually(lambda: figures_at(url).get("conquiet_tasks_in_flight") == 0)
        killed = app.enqueue("shop.wait_for", {"path": str(tmp_path / "never")}, max_retries=0)
        eventually(lambda: figures_at(url).get("conquiet_tasks_in_flight") == 1)
        os.kill(int((tmp_path / "never.begun").read_text()), signal.SIGKILL)
        with pytest.raises(TaskFailedError):
            killed.result(HANG_S)
        eventually(lambda: figures_at(url).get("conquiet_tasks_failed_total") == 1)
        eventually(lambda: figures_at(url).get("conquiet_tasks_in_flight") == 0)
        code, _, _ = ended(process, signal.SIGTERM)

    assert code == 0


def test_the_server_for_development_may_have_any_port(monkeypatch, tmp_path):
    Path("hello.py").write_text(HELLO)
    port = next(port for port in range(60_000, 65_536) if is_free(port, has_bus=False))
    monkeypatch.setenv("CONQUIET_REDIS_URL", f"redis://127.0.0.1:{port}/0")

    with running("worker", "--dev", "hello.py:app", "--concurrency", 1) as process:
        lines = read_until(process, "Ctrl-C stops it")
        code, _, err = ended(process, signal.SIGINT)

    assert code == 0, err
    assert f"127.0.0.1:{port}" in lines[0]


def test_a_file_that_a_child_has_just_made_does_not_fail_a_scrape(tmp_path):
    (tmp_path / "counter_4711.db").touch()

    assert list(ProcessesCollector(tmp_path).collect()) == []


def test_a_task_has_one_name_in_the_worker_and_in_a_module_that_is_run(valkey_url, tmp_path):
    """`python -m shop.tasks` beside `conquiet worker shop.tasks:app`."""
    namespace = f"cli-{uuid.uuid4().hex[:8]}"
    Path("shop").mkdir()
    code = HELLO.replace("TaskApp()", f"TaskApp(namespace={namespace!r})")
    Path("shop", "tasks.py").write_text(code)

    with running("worker", "shop.tasks:app", "--concurrency", 1, CONQUIET_REDIS_URL=valkey_url):
        done = subprocess.run(
            [sys.executable, "-m", "shop.tasks"],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
            env=os.environ | {"CONQUIET_REDIS_URL": valkey_url},
        )

    assert done.stdout == "Hello Ann\n", done.stderr


def test_the_banner_is_json_for_programs(valkey_url, tmp_path):
    Path("shop.py").write_text(WAITING.format(namespace=f"cli-{uuid.uuid4().hex[:8]}"))
    arguments = ("shop:app", "--queues", "mail,default", "--concurrency", 2, "--pool", "thread", "--json")

    with running("worker", *arguments, CONQUIET_REDIS_URL=valkey_url) as process:
        banner = json.loads(read_line(process))
        code, _, _ = ended(process, signal.SIGTERM)

    assert code == 0
    assert banner["queues"] == ["mail", "default"]
    assert (banner["pool"], banner["concurrency"]) == ("thread", 2)
    assert banner["tasks"] == ["shop.wait_for"]


@pytest.mark.parametrize("pool", ["process", "thread"])
def test_a_signal_lets_what_runs_finish(valkey_url, tmp_path, pool):
    namespace = f"cli-{uuid.uuid4().hex[:8]}"
    Path("shop.py").write_text(WAITING.format(namespace=namespace))
    with TaskApp(valkey_url, namespace=namespace) as app:
        handle = app.enqueue("shop.wait_for", {"path": str(tmp_path / "go")}, max_retries=0)
        arguments = ("shop.py:app", "--concurrency", 1, "--pool", pool, "--url", valkey_url)
        with running("worker", *arguments) as process:
            eventually(lambda: (tmp_path / "go.begun").exists())
            process.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            process.communicate(timeout=HANG_S)

        assert process.returncode == 0
        assert handle.result(HANG_S) == "done"


def test_children_finish_their_tasks_and_end_when_their_parent_is_killed(valkey_url, tmp_path):
    namespace = f"cli-{uuid.uuid4().hex[:8]}"
    Path("shop.py").write_text(WAITING.format(namespace=namespace))
    with TaskApp(valkey_url, namespace=namespace) as app:
        handle = app.enqueue("shop.wait_for", {"path": str(tmp_path / "go")}, max_retries=0)
        with running("worker", "shop.py:app", "--concurrency", 1, "--url", valkey_url) as process:
            file = tmp_path / "go.begun"
            eventually(lambda: file.exists() and file.read_text())
            child = int(file.read_text())

            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            (tmp_path / "go").touch()

            assert handle.result(HANG_S) == "done"
            eventually(lambda: not exists(child))


def test_a_second_signal_ends_what_runs(valkey_url, tmp_path):
    namespace = f"cli-{uuid.uuid4().hex[:8]}"
    Path("shop.py").write_text(WAITING.format(namespace=namespace))
    with TaskApp(valkey_url, namespace=namespace) as app:
        handle = app.enqueue("shop.wait_for", {"path": str(tmp_path / "go")}, max_retries=0)
        with running("worker", "shop.py:app", "--concurrency", 1, "--url", valkey_url) as process:
            eventually(lambda: (tmp_path / "go.begun").exists())
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            while "stopping" not in process.stderr.readline():
                pass
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG_S)

        status = handle.status()
        assert status is not None
        assert status.state == "dead_lettered"
        assert "stopped at once" in str(status.error)


def test_an_app_that_cannot_be_found_is_a_usage_error(run, tmp_path):
    Path("shop.py").write_text("app = 5")

    for name, text in (
        ("shop", "name the app as"),
        ("shop:app", "names no TaskApp"),
        ("no.py:app", "no file"),
    ):
        ran = run("worker", name, "--json")

        assert ran.code == 2
        assert text in ran.error["message"]


def test_a_name_with_a_typing_error_is_answered_with_the_right_one(run, tmp_path):
    Path("shop.py").write_text("from conquiet.tasks import TaskApp\nmain = TaskApp()\nother = TaskApp()\n")
    Path("src").mkdir()
    Path("src", "bills.py").touch()

    for name, text in (
        ("shopp:main", f"the current directory is {tmp_path}: did you mean shop.py:main?"),
        ("shopp.py:main", f"the current directory is {tmp_path}: did you mean shop.py:main?"),
        ("src.bill:app", "did you mean src/bills.py:app?"),
        ("src/bills:app", "did you mean src/bills.py:app?"),
        ("shop:app", "its TaskApps are: main, other"),
        ("entirely_else:app", f"the current directory is {tmp_path}"),
    ):
        ran = run("worker", name, "--json")

        assert ran.code == 2
        assert text in ran.error["message"]
        assert ("did you mean" in ran.error["message"]) == ("did you mean" in text)
    reloading = run("worker", "shopp:main", "--reload", "--json")
    assert "did you mean shop.py:main?" in reloading.error["message"]


def test_a_worker_whose_server_does_not_answer_ends_before_its_banner(anywhere, own_url, tmp_path):
    Path("shop.py").write_text(HELLO)

    for pool in ("process", "thread"):
        ran = anywhere("worker", "shop:app", "--pool", pool, "--json")

        assert (ran.code, ran.out) == (3, "")
        assert f"no server answers at {own_url}: start one, give --url, or use --dev" in ran.error["message"]


def test_a_worker_that_reads_no_queue_of_its_tasks_says_so(valkey_url, tmp_path):
    Path("shop.py").write_text(WAITING.format(namespace=f"cli-{uuid.uuid4().hex[:8]}"))
    arguments = ("shop:app", "--concurrency", 1, "--pool", "thread", "--url", valkey_url)

    for queues, warnings in (("mail,letters", 1), ("mail,default", 0)):
        with running("worker", *arguments, "--queues", queues) as process:
            read_until(process, "Ctrl-C stops it")
            code, _, err = ended(process, signal.SIGTERM)

        assert code == 0
        text = "no task of shop:app has its queue among those that are read, mail, letters"
        assert err.count(text) == warnings
        assert (": its tasks are enqueued into default" in err) == bool(warnings)


def test_an_app_whose_code_is_wrong_is_a_usage_error_with_its_traceback(run, tmp_path):
    Path("half_written.py").write_text("app = TaskApp(\n")
    Path("divides.py").write_text("1 / 0\n")

    for name, text in (("half_written:app", "SyntaxError"), ("divides.py:app", "ZeroDivisionError")):
        ran = run("worker", name, "--json")

        assert ran.code == 2
        assert text in ran.error["message"]
        assert "line 1" in ran.error["message"]


def test_a_hard_limit_in_a_pool_that_cannot_kill_is_a_usage_error(run, tmp_path):
    Path("limited.py").write_text(
        "from conquiet.tasks import TaskApp\napp = TaskApp()\n"
        "@app.task(hard_time_limit_s=5)\ndef render() -> None: ...\n"
    )

    ran = run("worker", "limited:app", "--pool", "thread", "--json")

    assert ran.code == 2
    assert "task 'limited.render' has a hard time limit of 5 s" in ran.error["message"]


def test_a_worker_whose_children_cannot_start_ends_with_an_error(valkey_url, tmp_path):
    Path("broken.py").write_text(
        "from conquiet.tasks import TaskApp\napp = TaskApp()\n"
        "@app.on_startup\ndef connect() -> None:\n    raise ConnectionError('no cache')\n"
    )

    with running("worker", "broken:app", "--concurrency", 1, CONQUIET_REDIS_URL=valkey_url) as process:
        _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 1
    assert "no cache" in err
    assert "ended with exit code 1" in err
