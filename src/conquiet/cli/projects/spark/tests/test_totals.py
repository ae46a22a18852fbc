"""The job, run by Spark on this machine, from a private server."""

import pytest
from totals import create, open_spark, run

from conquiet import EmbeddedServer, StreamWriter
from conquiet.mq import Topics, drain_topic
from conquiet.queue import open_client

ORDERS = [{"order_id": f"o-{n}", "customer": f"c-{n % 2}", "cents": 100} for n in range(10)]


@pytest.fixture(scope="session")
def spark():
    session = open_spark()
    yield session
    session.stop()


@pytest.fixture
def server():
    with EmbeddedServer() as started:
        create(started.url)
        yield started


def test_each_order_is_in_one_total(spark, server, tmp_path):
    totals = []
    with open_client(server.url) as client:
        for _ in range(2):
            # The second run begins where the first one ended.
            StreamWriter(client, "orders").enqueue_many(ORDERS)
            run(spark, server.url, str(tmp_path / "checkpoint"), availableNow=True)
        drain_topic(Topics(client).open("totals"), "test", totals.append)

    assert sorted((msg.key, msg.payload["cents"]) for msg in totals) == [
        ("c-0", 500),
        ("c-0", 500),
        ("c-1", 500),
        ("c-1", 500),
    ]
