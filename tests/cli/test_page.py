"""Pages of commands: each one runs, with the exit codes and JSON shapes that its page tells."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conquiet import EmbeddedServer
from conquiet.cli.exits import ExitCode
from conquiet.spark.jobs import application_of, check_arguments
from tests.cli.first_task import ROOT, first_task
from tests.cli.processes import ended, read_line, running
from tests.eventually import HANG_S

DOCS = ROOT / "docs"
COMMAND = re.compile(r"^\$ (?P<line>.*?)(?:\s+# (?:exit (?P<code>\d+)|(?P<runs>until Ctrl-C)|.*))?$")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A private server, and a directory of its own."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with EmbeddedServer() as server:
        monkeypatch.setenv("CONQUIET_REDIS_URL", server.url)
        yield tmp_path


def run_line(line: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def run_until_ctrl_c(line: str) -> int:
    with running(*line.split()[1:]) as process:
        assert read_line(process)
        return ended(process, signal.SIGINT)[0]


def shape(value: object) -> object:
    """Keys all the way down; of a list, its first element."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [shape(value[0])]
    return None


@pytest.mark.parametrize(("page", "at_least"), [("cli.md", 40), ("operations.md", 25)])
def test_every_command_of_the_page_ends_as_the_page_says_and_prints_what_it_shows(page, at_least, place):
    text_of_page = (DOCS / page).read_text()
    modules = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", text_of_page, re.MULTILINE | re.DOTALL)
    assert modules
    for name, code in modules:
        (place / name).write_text(code)
    blocks = re.findall(r"^```(console|bash|json)\n(.*?)^```$", text_of_page, re.MULTILINE | re.DOTALL)
    ran: subprocess.CompletedProcess[str] | None = None
    commands = 0
    for kind, text in blocks:
        if kind == "json":
            assert ran is not None
            printed = json.loads(ran.stdout.splitlines()[-1] if ran.stdout else ran.stderr)
            assert shape(printed) == shape(json.loads(text)), ran.args
            continue
        for match in filter(None, map(COMMAND.match, text.splitlines())):
            commands += 1
            if match["runs"]:
                assert run_until_ctrl_c(match["line"]) == 0, match["line"]
                continue
            ran = run_line(match["line"], place)
            assert ran.returncode == int(match["code"] or 0), (match["line"], ran.stdout, ran.stderr)
    assert commands > at_least


def test_the_commands_and_the_file_of_schedules_do_what_their_page_says(place, monkeypatch):
    text = (DOCS / "schedules.md").read_text()
    [(_, code), *_] = re.findall(r"^```(python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [(_, file)] = re.findall(r"^```(toml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (place / "shop").mkdir()
    (place / "shop" / "tasks.py").write_text(code)
    (place / "schedules.toml").write_text(file)
    monkeypatch.chdir(place)

    commands = re.findall(r"^\$ (conquiet schedule .*?)(?:\s+#.*)?$", text, re.MULTILINE)

    assert len(commands) == 7
    for line in commands:
        ran = run_line(line, place)
        assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
    assert run_line("conquiet schedule dry-run schedules.toml 10", place).returncode == 0


def test_the_page_in_a_browser_says_where_it_is(place):
    text = (DOCS / "page.md").read_text()
    [line] = re.findall(r"^\$ (conquiet page --url .*)$", text, re.MULTILINE)
    words = line.replace("redis://127.0.0.1:6379/0", os.environ["CONQUIET_REDIS_URL"]).split()

    with running(*words[1:], "--port", "0") as process:
        address, ends = read_line(process), read_line(process)
        assert ended(process, signal.SIGINT)[0] == 0

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+", address.strip())
    assert ends.strip() in text


def test_the_jobs_take_what_their_page_gives_them():
    text = (DOCS / "spark-jobs.md").read_text().replace("\\\n", " ")
    [publish] = re.findall(r"^\$ spark-submit .*? \$JOBS (.*)$", text, re.MULTILINE)
    [aggregate] = re.findall(r"^\$ python -m conquiet\.spark\.jobs\.aggregate (.*)$", text, re.MULTILINE)

    check_arguments("publish", shlex.split(publish))
    check_arguments("aggregate", shlex.split(aggregate))
    assert 'application_of("publish")' in text
    assert application_of("publish").endswith(".py")


def test_the_table_of_exit_codes_is_complete():
    table = (DOCS / "cli.md").read_text().partition("## Exit codes")[2].partition("## JSON")[0]

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == set(map(int, ExitCode))


def test_each_page_for_newcomers_has_the_same_first_task():
    """The worker's tests run that of the README."""
    pages = ("README.md", "docs/tasks.md", "docs/cli.md")
    [code] = {first_task(page) for page in pages}
    for page in pages:
        behind = (ROOT / page).read_text().partition(code)[2]
        assert "$ conquiet worker --dev shop.py:app" in behind.partition("\n## ")[0]
    page_of_tasks = (ROOT / "docs/tasks.md").read_text()
    assert page_of_tasks.index("```python") == page_of_tasks.index(f"```python\n{code}")
