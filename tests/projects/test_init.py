"""`conquiet init`: each project in an empty directory, with its tests run as a user would."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conquiet.cli.commands.init import KINDS
from tests.services import need_java

_GROUPS = {"airflow": "airflow", "dagster": "orchestrators", "spark": "spark"}


def marked(kind: str) -> object:
    groups = [pytest.mark.xdist_group(_GROUPS[kind])] if kind in _GROUPS else []
    return pytest.param(kind, marks=groups)


def without_our_variables() -> dict[str, str]:
    """As in a terminal of a user: this process has a home of Airflow, and paths of its own."""
    ours = ("AIRFLOW", "CONQUIET_", "PYTHONPATH", "PYTEST_", "DAGSTER_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@pytest.mark.parametrize("kind", [marked(kind) for kind in KINDS])
def test_the_tests_of_a_new_project_pass(anywhere, tmp_path, kind):
    if kind == "spark":
        need_java()
    project = tmp_path / "project"
    assert anywhere("init", kind, project).code == 0

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env=without_our_variables() | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Nothing was written to the home of the user.
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["project"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_has_what_its_readme_names(anywhere, tmp_path, kind):
    ran = anywhere("init", kind, tmp_path / "new" / "project", "--json")

    assert ran.code == 0
    names = {"README.md", "requirements.txt", "conquiet-dev.toml", ".gitignore"}
    assert names <= set(ran.json["files"])
    for name in ran.json["files"]:
        content = (tmp_path / "new" / "project" / name).read_text()
        if name.endswith(".py"):
            compile(content, name, "exec")


def test_nothing_is_overwritten(anywhere, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / ".venv").mkdir()

    ran = anywhere("init", "tasks", tmp_path)

    assert ran.code == 2
    assert "README.md in" in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", ".venv"}
    assert (tmp_path / "README.md").read_text() == "mine"


def test_an_unknown_kind_names_those_that_there_are(anywhere):
    ran = anywhere("init", "celery")

    assert ran.code == 2
    assert "airflow, dagster, spark, tasks" in ran.err
