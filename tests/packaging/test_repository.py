"""What contributors rely on: pages that agree with the Makefile, links that lead to files, CI files."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.packaging.environments import ROOT, VERSION

REPOSITORY = "https://github.com/conquiet/conquiet"
RAW = "https://raw.githubusercontent.com/conquiet/conquiet/main"
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


def test_every_path_of_the_table_for_contributors_exists():
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| to change …")[2].partition("\n\n")[0]
    paths = re.findall(r"`((?:conquiet|airflow_provider_conquiet|dagster_conquiet)/[\w/.]*)`", table)

    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / "src" / path).exists()] == []


def test_the_readme_has_only_links_that_work_on_a_package_page():
    """There is no repository around it there."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())
    ours = [link for link in links if link.startswith((f"{REPOSITORY}/", f"{RAW}/"))]

    assert len(ours) > 30
    assert [link for link in links if not link.startswith("https://")] == []
    for link in ours:
        path, _, anchor = re.sub(rf"^{REPOSITORY}/(?:blob|tree)/main/|^{RAW}/", "", link).partition("#")
        assert (ROOT / path).exists(), link
        assert not anchor or anchor in anchors_of((ROOT / path).read_text()), link


def anchors_of(page: str) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_image_of_the_readme_is_a_picture_of_the_repository():
    (image,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())

    assert (ROOT / image.removeprefix(f"{RAW}/")).read_bytes().startswith(b"\x89PNG")


def test_the_first_screen_of_the_readme_has_the_measured_table():
    compared = (ROOT / "docs/comparison.md").read_text()
    table = compared[compared.index("| system | tasks without") : compared.index("\n\nHow to read it")]

    assert table in (ROOT / "README.md").read_text().partition("```python")[0]


def test_a_release_needs_a_tag_of_this_version_and_its_changes():
    def check(tag: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / ".ci/check_tag.py"), tag]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    has_section = re.search(
        rf"^## \[?{re.escape(VERSION)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert "is not v" in check("v999.0.0").stderr
    assert check(f"v{VERSION}").returncode == (0 if has_section else 1)
    assert ("has no section" in check(f"v{VERSION}").stderr) == (has_section is None)


def test_the_release_is_published_without_a_password_and_by_its_own_job():
    workflow = yaml.safe_load((WORKFLOWS / "release.yml").read_text())
    jobs = workflow["jobs"]

    # PyYAML reads the key `on` as true.
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in (WORKFLOWS / "release.yml").read_text()
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert [job for job, body in jobs.items() if "id-token" in body.get("permissions", {})] == ["publish"]
    uses = [step.get("uses", "") for step in jobs["publish"]["steps"]]
    assert any(use.startswith("pypa/gh-action-pypi-publish@") for use in uses)
    assert not any(step.get("with", {}).get("password") for step in jobs["publish"]["steps"])
    for script in re.findall(r"\.ci/\w+\.py", (WORKFLOWS / "release.yml").read_text()):
        assert (ROOT / script).is_file()
