"""Commands that run until a signal: they end cleanly and leave nothing behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import redis

from conquiet.queue import open_client
from tests.cli.processes import COMMAND, ended, exists, read_line, running
from tests.eventually import HANG_S, eventually
from tests.services import free_port

ROOT = str(Path(__file__).parents[2])
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def finds_the_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ROOT)


@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGHUP])
def test_up_serves_until_a_signal_and_leaves_nothing_running(number):
    with running("up", "--json") as process:
        told = json.loads(read_line(process))
        with open_client(told["url"]) as client:
            assert client.ping()

        code, _, err = ended(process, number)

    assert (code, err) == (0, "")
    assert not any(map(exists, told["pids"]))
    assert not Path(told["dir"]).exists()


def test_up_keeps_its_data_and_port_in_a_directory(tmp_path):
    arguments = ("up", "--json", "--dir", tmp_path / "data", "--appendonly")
    urls = []
    for value in ("one", None):
        with running(*arguments) as process:
            url = json.loads(read_line(process))["url"]
            urls.append(url)
            with open_client(url) as client:
                if value:
                    client.set("kept", value)
                else:
                    assert client.get("kept") in (b"one", "one")
            assert ended(process, signal.SIGTERM)[0] == 0

    assert urls[0] == urls[1]


def test_up_tells_that_its_server_has_ended():
    with running("up", "--json") as process:
        told = json.loads(read_line(process))
        os.kill(told["pids"][0], signal.SIGKILL)
        process.wait(timeout=HANG_S)

    assert process.returncode == 7


def test_up_listens_on_the_port_it_is_given():
    port = free_port()
    with running("up", "--json", "--port", port) as process:
        assert json.loads(read_line(process))["url"] == f"redis://127.0.0.1:{port}/0"
        assert ended(process, signal.SIGTERM)[0] == 0


def test_up_on_a_port_that_is_taken_says_so(valkey_url):
    port = valkey_url.rpartition(":")[2].split("/")[0]
    with running("up", "--port", port) as process:
        _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 7
    assert "Address already in use" in err


def test_up_that_is_killed_leaves_nothing_running():
    with running("up", "--json") as process:
        told = json.loads(read_line(process))
        process.kill()

        eventually(lambda: not any(map(exists, told["pids"])))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_drain_stops_between_two_messages(number, valkey_url, stream, valkey, tmp_path):
    from conquiet.queue import StreamWriter

    begun = tmp_path / "begun"
    StreamWriter(valkey, stream).enqueue_many([{"n": n} for n in range(50)])
    arguments = ("drain", stream, "-g", "billing", "--handler", "tests.cli.handlers:slow", "--json")
    database = ("--database", f"sqlite:///{tmp_path}/x.db", "--url", valkey_url)
    with running(*arguments, *database, BEGUN_FILE=str(begun)) as process:
        eventually(lambda: begun.exists() and begun.read_text().count("\n") >= 2)

        code, out, _ = ended(process, number)

    report = json.loads(out)
    assert code == 0
    assert report["stopped_by"] == "stop"
    assert report["handled"] == begun.read_text().count("\n") < 50
    assert report["read"] == report["handled"] + report["handed_back"]


@pytest.mark.parametrize("number", SIGNALS)
def test_watch_and_metrics_end_with_a_signal(number, valkey_url, stream, valkey):
    valkey.xadd(stream, {"data": '{"n": 1}'})
    valkey.xgroup_create(stream, "billing", "0-0")
    with running("watch", stream, "--url", valkey_url, "--interval", "0.1", "--json") as process:
        looks = [json.loads(read_line(process)) for _ in range(3)]
        assert ended(process, number)[0] == 0
    with running("metrics", "serve", stream, "--port", "0", "--url", valkey_url, "--json") as process:
        url = json.loads(read_line(process))["url"]
        with urllib.request.urlopen(url, timeout=HANG_S) as page:
            text = page.read().decode()
        code, _, err = ended(process, number)

    assert [look["lag"] for look in looks] == [1, 1, 1]
    assert looks[-1]["enqueued_per_s"] == 0.0
    assert f'conquiet_mq_lag{{group="billing",partition="0",topic="{stream}"}} 1.0' in text
    assert (code, err) == (0, "")


def test_metrics_on_a_port_that_is_taken_is_a_usage_error(valkey_url):
    port = valkey_url.rpartition(":")[2].split("/")[0]
    with running("metrics", "serve", "--port", port, "--url", valkey_url) as process:
        _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 2
    assert "cannot be listened on" in err


def on_a_terminal(arguments, typed: bytes, until: bytes, **environment: str) -> tuple[int, bytes]:
    """Run with a terminal, type when `until` was seen; exit code and everything shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*COMMAND, *arguments], os.environ | {"COLUMNS": "200"} | environment)
    shown, has_typed = b"", False
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:
            break
        if not part:
            break
        shown += part
        if until in shown and not has_typed:
            os.write(terminal, typed)
            has_typed = True
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 1), (b"n\n", 6, 3), (b"\n", 6, 3)])
def test_on_a_terminal_it_asks(answer, code, left, valkey_url, valkey, stream):
    for n in range(3):
        valkey.xadd(stream, {"data": f'{{"n": {n}}}'})
    valkey.xgroup_create(stream, "billing", "$")

    ended_with, shown = on_a_terminal(("trim", stream, "--keep", "0", "--url", valkey_url), answer, b"[y/N]")

    assert ended_with == code, shown
    assert valkey.xlen(stream) == left


def test_watch_draws_on_a_terminal_until_ctrl_c(valkey_url, valkey, stream):
    valkey.xadd(stream, {"data": '{"n": 1}'})

    arguments = ("watch", stream, "--interval", "0.2", "--url", valkey_url)
    code, shown = on_a_terminal(arguments, b"\x03", b"no group")

    assert code == 0, shown
    assert b"handled/s" in shown


def test_a_reader_that_goes_away_is_no_error(valkey_url, valkey, stream):
    valkey.xadd(stream, {"data": '{"n": 1}'})
    watch = f"watch {stream} --interval 0.1 --json --url {valkey_url}"
    command = f"{sys.executable} -m conquiet.cli {watch} | head -n 1"

    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert redis.Redis.from_url(valkey_url).ping()
