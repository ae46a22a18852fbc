"""Spark Connect: reads, writes, queries and `drain_batch`, from a client that has nothing of conquiet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.eventually import HANG_S
from tests.with_spark.server_side import numbers_in

ROOT = Path(__file__).parents[2]


@pytest.fixture
def remote(spark) -> Iterator[str]:
    """The tests' own Spark as a server of Spark Connect."""
    name = "org.apache.spark.sql.connect.service.SparkConnectService$"
    service = spark._jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)
    service.start(spark._jsc.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(*(getattr(service, f"stop$default${number}")() for number in (1, 2)))


def test_a_thin_client_reads_writes_and_drains_each_row_once(remote, valkey, valkey_url, stream, tmp_path):
    database_url = f"sqlite:///{tmp_path}/numbers.db?timeout=600"
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number INTEGER)"))
    arguments = [remote, valkey_url, stream, database_url, str(tmp_path)]
    command = [sys.executable, str(Path(__file__).with_name("thin_client.py")), "--strict", *arguments]

    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr[-3_000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["read"], said["modules"]) == (500, [])
    assert "as if the server had died" in said["error"], said["error"][:3_000]
    assert numbers_in(valkey, f"{stream}-copy") == list(range(500))
    with engine.connect() as connection:
        found = connection.execute(text("SELECT number FROM numbers ORDER BY number")).scalars().all()
    assert found == list(range(500))
    engine.dispose()
