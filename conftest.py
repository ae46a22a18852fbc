"""Runs the Python blocks of README.md and docs/, each page from top to bottom as one program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser


def _enter_empty_directory(namespace: dict[str, object]) -> None:
    from tempfile import TemporaryDirectory

    namespace["_directory"] = directory = TemporaryDirectory()
    namespace["_came_from"] = Path.cwd()
    os.chdir(directory.name)


def _leave_directory(namespace: dict[str, object]) -> None:
    os.chdir(namespace["_came_from"])
    namespace["_directory"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md"],
    setup=_enter_empty_directory,
    teardown=_leave_directory,
).pytest()


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The blocks of one page share their names, so they run in one process (`pytest -n`)."""
    for item in items:
        if item.path.suffix == ".md":
            item.add_marker(pytest.mark.xdist_group(item.path.name))
