"""What contributors rely on: pages that agree with the Makefile, links that lead to files, CI files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.packaging.environments import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.md")])
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = ROOT / ".github" / "workflows"


def commands_of(target: str) -> list[str]:
    """The commands of a target of the Makefile, with the directory of the virtual environment."""
    (recipe,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.strip().removeprefix("@").replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]


def test_contributing_and_help_list_every_make_target():
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    targets = set(phony.split())

    listed = set(re.findall(r"^\| `make (\w+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    helped = set(re.findall(r'echo "make (\w+)', MAKEFILE))

    assert listed == targets
    assert helped <= targets


def test_pre_commit_runs_what_make_check_runs():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]

    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    assert [hook["entry"] for hook in repository["hooks"]] == commands_of("check")


def test_the_workflow_runs_the_ci_script():
    workflow = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())

    commands = [step.get("run") for step in workflow["jobs"]["all"]["steps"]]

    assert commands[-1] == ".ci/run"
    assert {"postgres", "mariadb"} == set(workflow["jobs"]["all"]["services"])


def test_the_matrix_has_every_python_of_the_classifiers():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    matrix = yaml.safe_load((WORKFLOWS / "matrix.yml").read_text())["jobs"]

    supported = [name.rpartition(" ")[2] for name in classifiers if ":: Python :: 3." in name]
    assert matrix["python"]["strategy"]["matrix"]["python"] == supported
    for version in matrix["orchestrators"]["strategy"]["matrix"]["include"]:
        assert (ROOT / version["tests"]).is_dir()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())

    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]

    assert missing == []


def test_every_path_of_the_readme_exists():
    table = (ROOT / "README.md").read_text().partition("| to change …")[2].partition("\n\n")[0]
    paths = re.findall(r"`((?:conquiet|airflow_provider_conquiet|dagster_conquiet)/[\w/.]*)`", table)

    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / "src" / path).exists()] == []
