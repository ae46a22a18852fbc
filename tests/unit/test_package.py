"""The package as it is installed: quick to import, pinned by names and versions."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import pytest

import conquiet

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_there():
    for name in conquiet.__all__:
        assert getattr(conquiet, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = conquiet.nothing


def test_importing_conquiet_imports_no_orchestrator_and_no_orm():
    heavy = "airflow dagster pyspark sqlalchemy redis prometheus_client"
    code = f"import conquiet, sys; print([n for n in '{heavy}'.split() if n in sys.modules])"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[]"


def test_using_the_core_imports_no_orchestrator_and_no_orm():
    code = (
        "import sys; from conquiet import *; "
        "print([n for n in ('airflow', 'dagster', 'pyspark', 'sqlalchemy.orm') if n in sys.modules])"
    )

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[]"


def test_constraints_are_exact_versions_and_no_addresses():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]

    assert lines
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line)] == []


def test_every_direct_dependency_is_installed_at_its_pinned_version():
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    names = [re.match(r"[A-Za-z0-9-]+", text) for text in requires("conquiet") or ()]
    direct = {name.group().lower() for name in names if name} - {"conquiet"}

    installed = {name: version(name) for name in direct}

    assert installed == {name: pins[name] for name in direct}


def test_the_version_is_told_once():
    assert conquiet.__version__ == version("conquiet")


def test_importing_the_mq_pays_for_no_sqlalchemy():
    code = "import conquiet.mq as mq, sys; print('sqlalchemy' in sys.modules, mq.PartitionConsumer.__name__)"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.split() == ["False", "PartitionConsumer"]


def test_without_greenlet_only_asyncio_is_missing_and_its_extra_is_named():
    code = """
import sys
sys.modules["greenlet"] = None
import redis.asyncio, conquiet, conquiet.mq
conquiet.drain, conquiet.mq.PartitionConsumer
async def handle(msg): ...
for use in (
    lambda: conquiet.AsyncQueue(redis.asyncio.Redis(), "orders"),
    lambda: conquiet.mq.AsyncProducer(redis.asyncio.Redis()),
    lambda: conquiet.mq.PartitionConsumer("orders", "billing", handle),
):
    try:
        use()
    except conquiet.errors.MissingExtraError as error:
        print(error.extra)
"""

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["asyncio"] * 3
