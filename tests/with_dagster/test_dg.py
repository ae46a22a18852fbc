"""The commands of docs/dagster.md for projects of `dg`, one after the other, as a user types them."""

from __future__ import annotations

import re
import shlex
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, text

# `make test` installs it; that of Dagster 1.12 cannot be beside `conquiet[cli]`.
dg_command = pytest.importorskip("dagster_dg_cli.cli").cli

DOCS = Path(__file__).parents[2] / "docs" / "dagster.md"
PYPROJECT = """
[project]
name = "shop-of-dg"
version = "0.1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop_of_dg"
"""
DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def commands_of_the_docs() -> list[str]:
    """All that are typed, in their order."""
    return re.findall(r"^\$ (dg .*)$", DOCS.read_text(), re.MULTILINE)


@pytest.fixture
def project(tmp_path):
    """What `create-dagster project shop` makes of it, without its virtual environment."""
    package = tmp_path / "shop_of_dg" / "shop_of_dg"
    (package / "defs").mkdir(parents=True)
    (tmp_path / "shop_of_dg" / "pyproject.toml").write_text(PYPROJECT)
    for name, contents in {"__init__": "", "defs/__init__": "", "definitions": DEFINITIONS}.items():
        (package / f"{name}.py").write_text(contents)
    return tmp_path / "shop_of_dg"


def test_the_commands_of_the_docs_make_a_project_that_drains(
    project, server_url, client, tmp_path, monkeypatch
):
    # A stream of its own: other tests may have one of the name that the docs have.
    orders = f"orders{uuid.uuid4().hex[:8]}"
    client.xadd(orders, {"data": '{"order_id": 1}'})
    database_url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    for name, value in {
        "REDIS_URL": server_url,
        "DATABASE_URL": database_url,
        "DAGSTER_HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)

    outputs = {}
    for command in commands_of_the_docs():
        # In this process: each start of `dg` would load all of Dagster anew.
        done = CliRunner().invoke(dg_command, shlex.split(command.replace("orders", orders))[1:])
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception}"
        outputs[command.partition(" --")[0]] = done.output

    engine = create_engine(database_url)
    with engine.connect() as connection:
        handled = connection.execute(text("SELECT payload FROM handled_messages")).scalars().all()
    engine.dispose()
    assert handled == ['{"order_id": 1}']
    for component in ("StreamDrainComponent", "TopicDrainComponent", "ConnectionComponent"):
        assert component in outputs["dg list components"]
