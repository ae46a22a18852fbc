"""The command line tool in this process, on servers of the session."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conquiet.cli.main import app
from conquiet.queue import open_client


class Ran:
    """What one command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error document on stderr."""
        return json.loads(self.err.splitlines()[-1])["error"]


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """No config file and no variable of the machine reaches a test."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CONQUIET_") and "_TEST_" not in name]:
        monkeypatch.delenv(name)


@pytest.fixture
def anywhere(tmp_path: Path) -> Iterator[Run]:
    """Runs a command without saying where the server is; what it imports of the test's own is forgotten."""

    def run(*arguments: object, typed: str | None = None) -> Ran:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    yield run
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def run(anywhere, valkey_url, monkeypatch) -> Run:
    """Runs a command on the embedded server."""
    monkeypatch.setenv("CONQUIET_REDIS_URL", valkey_url)
    return anywhere


@pytest.fixture
def run_on_each(anywhere, server_url, monkeypatch) -> Run:
    """Runs a command on each kind of server."""
    monkeypatch.setenv("CONQUIET_REDIS_URL", server_url)
    return anywhere


@pytest.fixture
def valkey(valkey_url) -> Iterator[Any]:
    """A client, to look from outside."""
    with open_client(valkey_url) as client:
        yield client


@pytest.fixture
def topic(stream) -> str:
    """The name of a topic of the test's own."""
    return stream.replace(":", "-")
