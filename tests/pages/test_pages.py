"""The Python blocks of docs/ run, each page from top to bottom as one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Each block of a tutorial is a file of its own: `test_tutorials.py`; the reference is made from docstrings.
PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if not path.name.startswith("tutorial-")]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Code outside of such blocks, which nothing would run.
STRAY = re.compile(
    r"^ {0,4}(?:from [\w.]+ import |import [\w.]+$|(?:async )?def \w+\(|class \w+[:(]|@\w+\().*", re.MULTILINE
)
#: A block that is a file of a project of its own, with tests.
TEST_FILE = re.compile(r"# (test_\w+\.py)\n")
_CLI_PAGE = "cli/test_page.py::test_every_command_of_the_page_ends_as_the_page_says_and_prints_what_it_shows"
#: What runs the other blocks, by page and language; those of tutorials: `test_tutorials.py`.
RUNNERS = {
    ("README.md", "console"): "pages/test_quickstarts.py::test_a_quickstart_runs_alone_and_a_second_time",
    ("cli.md", "console"): _CLI_PAGE,
    ("cli.md", "json"): _CLI_PAGE,
    ("operations.md", "console"): _CLI_PAGE,
    (
        "dagster.md",
        "console",
    ): "with_dagster/test_dg.py::test_the_commands_of_the_docs_make_a_project_that_drains",
    ("dagster.md", "yaml"): "with_dagster/test_component.py::test_the_components_of_the_docs_are_read",
    ("schedules.md", "console"): (
        "cli/test_page.py::test_the_commands_and_the_file_of_schedules_do_what_their_page_says"
    ),
    ("schedules.md", "toml"): (
        "cli/test_page.py::test_the_commands_and_the_file_of_schedules_do_what_their_page_says"
    ),
    ("deploy.md", "console"): "deploy/test_page.py::test_a_command_of_the_page_runs",
    ("page.md", "console"): "cli/test_page.py::test_the_page_in_a_browser_says_where_it_is",
    ("page.md", "acl"): "page/test_views.py::test_a_user_who_may_only_read_is_enough_for_every_view",
    ("security.md", "acl"): "cli/test_rights.py::test_the_line_of_a_role_is_enough_for_its_work",
    ("tasks.md", "console"): "cli/test_worker.py::test_a_newcomer_sees_a_result_and_his_next_version",
    ("spark-jobs.md", "console"): "cli/test_page.py::test_the_jobs_take_what_their_page_gives_them",
}


def program_of(page: Path) -> str:
    """The page's Python blocks at the lines where they stand, so that a traceback points into the page."""
    text = page.read_text()
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for offset, line in enumerate(block.group(1).splitlines()):
            lines[first + offset] = line
    return "\n".join(lines)


@pytest.mark.parametrize(
    "page",
    # Pages on Spark share the Java process of Spark's tests.
    [
        pytest.param(page, marks=[pytest.mark.xdist_group("spark")] * ("pyspark" in page.read_text()))
        for page in PAGES
        if not TEST_FILE.search(page.read_text())
    ],
    ids=lambda page: page.name,
)
def test_every_block_of_the_page_runs(page, tmp_path_factory, monkeypatch):
    program = program_of(page)
    assert program.strip(), f"{page.name} has no Python block"
    code = compile(program, str(page), "exec", dont_inherit=True)

    for tries_left in reversed(range(5)):
        monkeypatch.chdir(tmp_path_factory.mktemp("page"))
        try:
            exec(code, {"__name__": "__page__"})
        except Exception as error:
            # Spark gives a Python process ten seconds to start, however busy the machine is.
            if not tries_left or "Python worker failed to connect back" not in str(error):
                raise
        else:
            break


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_the_page_has_no_code_that_nothing_runs(page):
    assert STRAY.findall(BLOCK.sub("", page.read_text())) == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_each_block_that_is_no_python_has_a_test_that_runs_it(page):
    """Blocks of text are what something prints, or a drawing."""
    languages = set(re.findall(r"^ *```(\w+)$", page.read_text(), re.MULTILINE)) - {"python", "text"}
    if page.name.startswith("tutorial-"):
        languages -= {"console"}

    runners = {language: RUNNERS.get((page.name, language)) for language in languages}
    assert [language for language, runner in runners.items() if runner is None] == []
    for path, _, name in (str(runner).partition("::") for runner in runners.values()):
        assert f"def {name}(" in (ROOT / "tests" / path).read_text()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.xdist_group("orchestrators"))
        for page in PAGES
        if TEST_FILE.search(page.read_text())
    ],
    ids=lambda page: page.name,
)
def test_the_tests_of_the_page_pass(page, tmp_path):
    for block in BLOCK.findall(page.read_text()):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name, f"a block of {page.name} is no file:\n{block}"
        (tmp_path / name[1]).write_text(block)
    ours = ("AIRFLOW", "CONQUIET_", "PYTEST_")

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(ours)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(list(tmp_path.glob("test_*.py"))) > 1
