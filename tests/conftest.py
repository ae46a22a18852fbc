"""Fixtures of every test: private servers for the session, private names for the test."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
from sqlalchemy import Column, Engine, MetaData, String, Table, Text

from conquiet import QueueConfig, RedisStreamsQueue, masking
from tests.services import REDIS_KINDS, database, open_engine, redis_server
from tests.spans import Spans, traced
from tests.with_spark.class_archive import java_options

# A shell that forbids bytecode makes every subprocess compile everything anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell that ignores SIGINT (`nohup make test &`) hands that on to every process: no Ctrl-C of a test would
# reach the process that it is sent to. A handler here is the default there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())
# No deadline measures the machine; a fixture may be shared by the examples of one test.
hypothesis.settings.register_profile(
    "conquiet",
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
hypothesis.settings.load_profile("conquiet")

#: What `--quick` leaves out: folders, files, groups of `pytest -n`, and each kind of server but one.
_SLOW_FOLDERS = {"with_airflow", "with_spark", "packaging", "chaos", "crashes", "pages"}
_SLOW_FILES = {"test_rights.py", "test_page.py", "test_large_messages.py", "test_replicas.py"}
_SLOW_GROUPS = {"spark", "airflow", "orchestrators", "chromium"}
_OTHER_SERVERS = set(REDIS_KINDS) - {"valkey"}

MakeQueue = Callable[..., RedisStreamsQueue]

#: What handlers of these tests write: one row per effect; doubles are allowed, so that they can be seen.
effects = Table("effects", MetaData(), Column("entry_id", String(64)), Column("note", Text))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make quick`."""
    parser.addoption("--quick", action="store_true", help="no Airflow, Spark or chaos, one kind of server")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what is left out."""
    is_slow = collection_path.parent == Path(__file__).parent and collection_path.name in _SLOW_FOLDERS
    is_slow = is_slow or collection_path.name in _SLOW_FILES
    return True if config.getoption("--quick") and is_slow else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the rest, leave out what starts an orchestrator, and each server but one."""
    if not config.getoption("--quick"):
        return
    config.hook.pytest_deselected(items=[item for item in items if _is_slow(item)])
    items[:] = [item for item in items if not _is_slow(item)]


def _is_slow(item: pytest.Item) -> bool:
    group = item.get_closest_marker("xdist_group")
    callspec = getattr(item, "callspec", None)
    servers = [value for value in (callspec.params if callspec else {}).values() if isinstance(value, str)]
    return (group is not None and group.args[0] in _SLOW_GROUPS) or not _OTHER_SERVERS.isdisjoint(servers)


@pytest.fixture(scope="session", params=REDIS_KINDS)
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each kind of server in turn."""
    with redis_server(request.param) as url:
        yield url


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The embedded server, for tests that need one server and not each kind."""
    with redis_server("valkey") as url:
        yield url


@pytest.fixture(autouse=True)
def forget_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has for a password may be a word in the sentences of the next."""
    monkeypatch.setattr(masking, "_known", set(masking._known))


@pytest.fixture
def stream() -> str:
    """A stream name that no other test has."""
    return f"test:{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(server_url: str) -> Iterator[redis.Redis]:
    """A plain redis-py client, to look at the server from outside."""
    with redis.Redis.from_url(server_url) as opened:
        yield opened


@pytest.fixture
def make_queue(server_url: str, stream: str) -> Iterator[MakeQueue]:
    """Opens queues on the test's own stream."""
    with ExitStack() as opened:

        def make(consumer: str = "worker-1", group: str = "billing", **config: int) -> RedisStreamsQueue:
            values: dict[str, Any] = {"block_ms": 50, "claim_idle_ms": 60_000} | config
            queue_config = QueueConfig(stream, group, consumer, **values)
            return opened.enter_context(RedisStreamsQueue.from_url(server_url, queue_config))

        yield make


@pytest.fixture
def queue(make_queue: MakeQueue) -> RedisStreamsQueue:
    """One queue on the test's own stream."""
    return make_queue()


@pytest.fixture
def engine(tmp_path) -> Iterator[Engine]:
    """A SQLite database of the test's own, with the table `effects`."""
    with database("sqlite", tmp_path) as url:
        opened = open_engine(url)
        effects.create(opened)
        yield opened
        opened.dispose()


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Tracing is on for the test; what it has exported."""
    with traced() as found:
        yield found
