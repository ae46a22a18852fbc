"""One Spark session for all tests, one server, private names."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from conquiet.mq import Topic, Topics
from tests.services import free_port, unavailable

ReadStream = Callable[..., Any]


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator[Any]:
    """Two cores, two attempts for each task; the data source is found, not registered."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        unavailable("java", "no java on PATH")
    sql = pytest.importorskip("pyspark.sql")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    left_over = sql.SparkSession.getActiveSession()
    if left_over is not None:
        # A page of the documentation ran before in this process, with settings of its own.
        left_over.stop()
    session = (
        sql.SparkSession.builder.master("local[2,2]")
        .appName("conquiet-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # Of the service for Spark Connect, if a test starts it.
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        # The JVM may be that of a page, which was started in a directory without these tests.
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    # What fails on purpose would fill the log; errors reach the tests as exceptions.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def valkey(valkey_url: str) -> Iterator[redis.Redis]:
    """A plain redis-py client, to see the server from outside."""
    with redis.Redis.from_url(valkey_url) as opened:
        yield opened


@pytest.fixture
def topic(valkey: redis.Redis) -> Topic:
    """A topic of three partitions that no other test has."""
    return Topics(valkey).create(f"test-{uuid.uuid4().hex[:12]}", partitions=3)


@pytest.fixture
def read(spark, valkey_url: str) -> Callable[..., Any]:
    """A DataFrame of what is there."""

    def load(**options: object) -> Any:
        texts = {name: str(value) for name, value in options.items()}
        return spark.read.format("redis-stream").options(url=valkey_url, **texts).load()

    return load


@pytest.fixture
def write(valkey_url: str) -> Callable[..., None]:
    """Adds the rows of a DataFrame."""

    def save(df: Any, **options: object) -> None:
        texts = {name: str(value) for name, value in options.items()}
        df.write.format("redis-stream").mode("append").options(url=valkey_url, **texts).save()

    return save


@pytest.fixture
def free_url() -> str:
    """Where no server is."""
    return f"redis://127.0.0.1:{free_port()}/0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One session on one worker of `pytest -n`: a Java process for each would cost more than it gains."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("spark"))
