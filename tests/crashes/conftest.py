"""One process that forks a child for each crash point, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from conquiet.testing.crash_points import Fault
from tests.crashes.explorer import Exploration
from tests.crashes.worker import Worker

#: Plain handlers, and `async def` ones over an AsyncEngine.
KINDS = ["", "_async"]

Explore = Callable[..., Exploration]


@pytest.fixture(scope="module")
def worker(valkey_url: str) -> Iterator[Worker]:
    """The process that forks."""
    with Worker(valkey_url) as started:
        yield started


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: only processes die here, and each point makes a database."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as made:
        yield Path(made)


@pytest.fixture
def explore(worker: Worker, directory: Path, request: pytest.FixtureRequest) -> Explore:
    """Explores a scenario; its figures are a property of the test in a JUnit report."""

    def run(scenario: str, fault: Fault = "crash") -> Exploration:
        exploration = worker.explore(scenario, fault, directory)
        # Not `record_property`, which warns about the report's default family.
        request.node.user_properties.append(("exploration", str(exploration)))
        return exploration

    return run
