"""Every public name has an example in its docstring, and it runs."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from docs_site.public_names import PAGES as REFERENCE_PAGES
from docs_site.public_names import PREPARATIONS, PublicName, public_names
from tests.packaging.environments import ROOT
from tests.with_airflow import home

home.choose()

# After Airflow has its home.
from airflow_provider_conquiet.get_provider_info import get_provider_info  # noqa: E402

PAGES = (*PREPARATIONS,)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES_OF_PROSE = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OURS = ("conquiet", "dagster_conquiet", "airflow_provider_conquiet")


def example_of(name: PublicName) -> str:
    docstring = inspect.getdoc(name.load()) or ""
    return docstring.partition("Examples:\n")[2]


@pytest.mark.parametrize("page", PAGES)
def test_every_public_name_has_an_example(page: str):
    assert [str(one) for one in public_names(page) if ">>>" not in example_of(one)] == []


def imports_of(page: Path) -> Iterator[tuple[str, str]]:
    """Modules of ours and the names that the page imports from them."""
    for block in BLOCK.findall(page.read_text()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
                yield from ((str(node.module), one.name) for one in node.names if one.name != "*")


@pytest.mark.parametrize("page", PAGES_OF_PROSE, ids=lambda page: page.name)
def test_the_reference_has_every_name_that_a_page_imports(page: Path):
    documented = [one for page_of in (*REFERENCE_PAGES, "airflow") for one in public_names(page_of)]
    known = {id(one.load()) for one in documented}
    modules = {one.package for one in documented}

    unknown = []
    for module, name in imports_of(page):
        value = getattr(import_module(module), name, None) or import_module(f"{module}.{name}")
        if id(value) not in known and getattr(value, "__name__", "") not in modules:
            unknown.append(f"{module}.{name}")
    assert unknown == []


def test_the_reference_has_every_class_of_the_provider():
    """Those that the provider says it has, and each that is defined beside them."""
    given = get_provider_info()
    modules = {
        module
        for part in ("operators", "sensors", "hooks", "triggers")
        for group in given[part]
        for module in group["python-modules"]
    }
    ours = {
        f"{module}.{name}"
        for module in modules
        for name, value in vars(import_module(module)).items()
        if isinstance(value, type) and value.__module__ == module and name[0] != "_"
    }

    documented = {str(one) for one in public_names("airflow")}
    assert ours - documented == set()


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What a page of the reference begins with, executed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("reference"))
        prepared: dict[str, Any] = {}
        exec(compile(PREPARATIONS[request.param], f"reference/{request.param}.md", "exec"), prepared)
        yield prepared
        if "worker" in prepared:
            prepared["worker"].stop()
            prepared["worker"].join()
        if "server" in prepared:
            if "engine" in prepared:
                prepared["engine"].dispose()
                prepared["client"].close()
            prepared["server"].stop()


def examples() -> Iterator[Any]:
    for page in PAGES:
        marks = [pytest.mark.xdist_group("spark" if page == "spark" else "docstrings")]
        for one in public_names(page):
            if ">>>" in example_of(one):
                yield pytest.param(page, one, marks=marks, id=f"{page}:{one.name}")


@pytest.mark.parametrize(("stage", "name"), list(examples()), indirect=["stage"], scope="module")
def test_the_example_of_a_public_name_runs(name: PublicName, stage):
    given = {**stage, name.name: name.load()}
    test = doctest.DocTestParser().get_doctest(example_of(name), given, str(name), None, 0)
    said: list[str] = []

    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    result = runner.run(test, out=said.append, clear_globs=False)

    assert result.attempted > 0
    assert result.failed == 0, "".join(said)
