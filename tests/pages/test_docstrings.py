"""Every public name has an example in its docstring, and it runs."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from docs_site.public_names import PREPARATIONS, PublicName, public_names
from tests.with_airflow import home

home.choose()

PAGES = (*PREPARATIONS,)


def example_of(name: PublicName) -> str:
    docstring = inspect.getdoc(name.load()) or ""
    return docstring.partition("Examples:\n")[2]


@pytest.mark.parametrize("page", PAGES)
def test_every_public_name_has_an_example(page: str):
    assert [str(one) for one in public_names(page) if ">>>" not in example_of(one)] == []


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
