"""What is in the wheel and in the sdist: everything that is needed, nothing else."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.metadata import Metadata
from trove_classifiers import classifiers

from tests.packaging.environments import ROOT, Built
from tests.with_airflow import home

# Before an entry point imports Airflow, which makes its home then.
home.choose()

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("conquiet", "airflow_provider_conquiet", "dagster_conquiet", "pyspark_redis_stream")
#: Bytes; code and the templates of the page, without dependencies. Figures or pictures would not fit.
SMALL = 1_200_000


def files_below(*directories: str) -> set[str]:
    """The files of the repository in these directories, but for what Python leaves there."""
    return {
        str(path.relative_to(ROOT))
        for directory in directories
        for path in (ROOT / directory).rglob("*")
        if path.is_file() and not path.name.endswith(".pyc")
    }


@pytest.fixture(scope="module")
def wheel(built: Built) -> dict[str, bytes]:
    with zipfile.ZipFile(built.wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Metadata:
    return Metadata.from_email(wheel[f"conquiet-{PROJECT['version']}.dist-info/METADATA"], validate=True)


def test_the_wheel_has_every_file_of_every_package_and_nothing_else(wheel):
    packaged = {f"src/{name}" for name in wheel if ".dist-info/" not in name}

    assert packaged == files_below(*(f"src/{package}" for package in PACKAGES))
    data = ("src/conquiet/cli/projects/", "src/conquiet/page/static/", "src/conquiet/page/templates/")
    code = {name for name in packaged if not name.startswith(data)}
    assert {Path(name).suffix for name in code} == {".py", ".lua", ".typed"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_type_checker_finds_the_types_of_each_package(wheel, package):
    assert f"{package}/py.typed" in wheel


def test_the_wheel_is_small_and_for_every_platform(built):
    print(f"{built.wheel.name}: {built.wheel.stat().st_size:,} bytes")

    assert built.wheel.stat().st_size < SMALL
    assert built.wheel.name.endswith("-py3-none-any.whl")


def test_the_wheel_has_its_license(wheel, metadata):
    (name,) = [name for name in wheel if name.endswith("/licenses/LICENSE")]

    assert wheel[name] == (ROOT / "LICENSE").read_bytes()
    assert metadata.license_expression == "Apache-2.0"


def test_the_metadata_are_what_an_index_accepts(metadata):
    assert (metadata.name, str(metadata.version)) == ("conquiet", PROJECT["version"])
    assert set(metadata.classifiers) <= set(classifiers)
    assert str(metadata.requires_python) == PROJECT["requires-python"]


def test_every_python_of_the_classifiers_is_allowed(metadata):
    versions = [name.rpartition(" ")[2] for name in metadata.classifiers if ":: Python :: 3." in name]

    assert versions
    assert all(metadata.requires_python.contains(version) for version in versions)


def test_the_readme_is_the_long_description_and_renders(metadata):
    page = MarkdownIt("commonmark").enable("table").render(metadata.description)

    assert metadata.description_content_type.startswith("text/markdown")
    assert metadata.description.strip() == (ROOT / "README.md").read_text().strip()
    assert page.startswith("<h1>conquiet</h1>")
    assert "<table>" in page
    assert '<code class="language-python">' in page


def test_every_extra_that_users_know_is_there(metadata):
    wanted = {"airflow", "all", "cli", "dagster", "embedded", "mysql", "otel", "postgres", "spark"}

    assert wanted <= set(metadata.provides_extra)


def test_all_has_every_extra_but_those_of_maintainers():
    (everything,) = PROJECT["optional-dependencies"]["all"]
    named = set(everything.removeprefix("conquiet[").removesuffix("]").split(","))

    assert named == set(PROJECT["optional-dependencies"]) - {"all", "deploy", "dev", "dg"}


def test_every_entry_point_leads_somewhere(wheel):
    parser = ConfigParser(delimiters=["="])
    parser.read_string(wheel[f"conquiet-{PROJECT['version']}.dist-info/entry_points.txt"].decode())

    assert set(parser.sections()) == {
        "console_scripts",
        "apache_airflow_provider",
        "airflow.plugins",
        "dagster_dg_cli.registry_modules",
        "pytest11",
    }
    for group in parser.sections():
        for name, value in parser[group].items():
            assert EntryPoint(name, value, group).load() is not None


def test_the_sdist_has_what_is_needed_to_build_and_to_test(built):
    with tarfile.open(built.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    alone = {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", "LICENSE"}
    alone |= {"CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", ".pre-commit-config.yaml"}
    alone |= {"mkdocs.yml", "Dockerfile", ".dockerignore", "docker-compose.yml", ".env.example"}

    assert packed >= alone | files_below(
        *("src", "tests", "examples", "dags", "dagster_defs", "docs", "docs_site", "deploy", ".ci", ".github")
    )
    assert [name for name in packed if name.endswith((".pyc", ".env"))] == []
