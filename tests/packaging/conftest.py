"""One build for all tests of this folder, and one environment for each set of extras."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.environments import Built, Environment, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Wheel and sdist."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def core(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install conquiet`."""
    environment = Environment.create(tmp_path_factory.mktemp("core") / "venv")
    environment.install(built.wheel)
    return environment


@pytest.fixture(scope="session")
def laptop(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install 'conquiet[embedded,cli]'`."""
    environment = Environment.create(tmp_path_factory.mktemp("laptop") / "venv")
    environment.install(built.wheel, "[embedded,cli]")
    return environment


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One build on one worker of `pytest -n`."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.xdist_group("packaging"))
