"""Fixtures of these tests: the same database of each kind for the session, empty tables for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from sqlalchemy import Engine, MetaData, Table, create_engine, inspect, make_url
from sqlalchemy.schema import DropTable

from conquiet import Outbox, QueueConfig, RedisStreamsQueue
from tests.services import DATABASE_KINDS, database, free_port, open_engine
from tests.with_databases.consuming import ConsumeOne, by_async_drain, by_async_run, by_drain, by_run
from tests.with_databases.tables import accounts, effects

#: Emptied after each test; every other table is dropped, which takes some databases far longer.
KEPT = {"effects", "accounts", "conquiet_inbox", "conquiet_outbox"}

OpenDb = Callable[[], Engine]
OpenQueue = Callable[..., RedisStreamsQueue]


def only_on(*kinds: str) -> pytest.MarkDecorator:
    """For behaviour that only these databases have."""
    return pytest.mark.parametrize("database_url", kinds, indirect=True)


@pytest.fixture(scope="session", params=DATABASE_KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Each kind of database in turn."""
    with database(request.param, tmp_path_factory.mktemp("databases")) as url:
        yield _without_tls(url)


@pytest.fixture(scope="session")
def janitor(database_url: str) -> Iterator[Engine]:
    """The engine that makes the tables of every test and empties them after each."""
    engine = open_engine(database_url)
    effects.create(engine)
    accounts.create(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def open_db(database_url: str, janitor: Engine) -> Iterator[OpenDb]:
    """Opens engines on the database of this test; whatever it wrote is gone after it."""
    opened: list[Engine] = []

    def open_one() -> Engine:
        opened.append(open_engine(database_url))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.dispose()
    with janitor.begin() as connection:
        for name in inspect(connection).get_table_names():
            table = Table(name, MetaData())
            connection.execute(table.delete() if name in KEPT else DropTable(table))


@pytest.fixture
def db(open_db: OpenDb) -> Engine:
    """An engine on a database with the empty tables `effects` and `accounts`."""
    return open_db()


@pytest.fixture
def outbox(db: Engine) -> Outbox:
    """An outbox whose table is there."""
    made = Outbox()
    made.create_table(db)
    return made


@pytest.fixture
def unreachable(database_url: str) -> Engine:
    """An engine of this kind for a database that is not there."""
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        return create_engine(url.set(database="/no/such/directory/at/all.db"))
    return create_engine(url.set(port=free_port()))


@pytest.fixture
def valkey(valkey_url: str) -> Iterator[redis.Redis]:
    """A plain redis-py client, to look at the server from outside."""
    with redis.Redis.from_url(valkey_url) as client:
        yield client


@pytest.fixture
def open_queue(valkey_url: str, stream: str) -> Iterator[OpenQueue]:
    """Opens queues, on the stream of this test unless told otherwise."""
    opened: list[RedisStreamsQueue] = []

    def open_one(
        consumer: str = "worker-1", *, group: str = "billing", name: str = stream
    ) -> RedisStreamsQueue:
        config = QueueConfig(name, group, consumer, block_ms=50)
        opened.append(RedisStreamsQueue.from_url(valkey_url, config))
        return opened[-1]

    yield open_one
    for queue in opened:
        queue.close()


@pytest.fixture
def valkey_queue(open_queue: OpenQueue) -> RedisStreamsQueue:
    """One queue on the stream of this test."""
    return open_queue()


@pytest.fixture(params=[by_drain, by_run, by_async_drain, by_async_run])
def consume_one(request: pytest.FixtureRequest) -> ConsumeOne:
    """Each way to handle one message."""
    consume: ConsumeOne = request.param
    return consume


@pytest.fixture(params=[by_drain, by_run])
def consume_plainly(request: pytest.FixtureRequest) -> ConsumeOne:
    """Each way with a plain handler: for tests of one driver, or of a pool that no event loop has."""
    consume: ConsumeOne = request.param
    return consume


def _without_tls(url: str) -> str:
    # To be ready for TLS takes PyMySQL longer, at each connect, than most of these tests take.
    parsed = make_url(url)
    if parsed.get_driver_name() != "pymysql" or parsed.host != "127.0.0.1":
        return url
    return parsed.update_query_dict({"ssl_disabled": "true"}).render_as_string(hide_password=False)
