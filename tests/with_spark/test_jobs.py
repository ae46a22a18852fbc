"""The jobs on real Spark: what they read, what they publish, how they fail."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from conquiet import EmbeddedServer
from conquiet.mq import Message, Producer, Topics
from conquiet.queue import open_client
from conquiet.spark.jobs import ExitCode
from conquiet.spark.jobs.task_progress import Progress
from tests.eventually import eventually
from tests.services import database, open_engine
from tests.with_spark.job_runs import envelopes, payloads, run_here

pytestmark = pytest.mark.xdist_group("spark")

IN_DATABASE = {"in": "database"}
ORDERS: list[dict[str, Any]] = [
    {"order_id": number, "customer": f"c{number % 7}", "cents": 100 + number, "at": number % 150}
    for number in range(500)
]


@pytest.fixture
def run(spark, capsys, monkeypatch, valkey_url):
    """Runs a job on the tests' session and server."""
    monkeypatch.setenv("CONQUIET_REDIS_URL", valkey_url)
    return lambda job, **options: run_here(capsys, job, **options)


@pytest.fixture(params=["sqlite", "postgres"])
def orders_database(request, tmp_path, monkeypatch):
    """A database with 500 orders, one of them without a number."""
    with database(request.param, tmp_path) as url:
        engine = open_engine(url)
        with engine.begin() as connection:
            connection.execute(
                text(
                    "CREATE TABLE orders (number INTEGER, customer VARCHAR(20), cents BIGINT,"
                    " price NUMERIC(10, 2), ordered_at TIMESTAMP, is_paid BOOLEAN)"
                )
            )
            rows = [
                {
                    "number": order["order_id"] or None,
                    "customer": order["customer"],
                    "cents": order["cents"],
                    "price": str(Decimal(order["cents"]) / 100),
                    "ordered_at": datetime(2026, 3, 1) + timedelta(minutes=order["at"]),
                    "is_paid": True,
                }
                for order in ORDERS
            ]
            insert = "INSERT INTO orders VALUES (:number, :customer, :cents, :price, :ordered_at, :is_paid)"
            connection.execute(text(insert), rows)
        monkeypatch.setenv("CONQUIET_DATABASE_URL", url)
        yield engine
        engine.dispose()


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_become_messages(run, spark, topic, tmp_path, kind):
    df = spark.createDataFrame(
        [(number, f"c{number % 5}") for number in range(100)], "n INT, customer STRING"
    )
    df.write.format(kind).option("header", "true").save(f"{tmp_path}/orders.{kind}")
    options = {"option": "header=true", "schema": "n INT, customer STRING"} if kind == "csv" else {}

    ended = run(
        "publish",
        files=f"{tmp_path}/orders.{kind}",
        to_topic=topic.name,
        key="customer",
        header="from=files",
        **options,
    )

    found = envelopes(topic)
    assert (ended.code, ended.report["rows"], ended.report["messages"]) == (0, 100, 100)
    assert sorted(message["payload"]["n"] for message in found) == list(range(100))
    assert all(message["key"] == message["payload"]["customer"] for message in found)
    assert all(message["headers"] == {"from": "files"} for message in found)


def test_a_query_of_spark_becomes_messages_of_a_plain_stream(run, valkey, stream):
    ended = run("publish", query="SELECT id AS n, 'x' AS more FROM range(10)", to_stream=stream, columns="n")

    assert ended.code == 0
    said = [json.loads(fields[b"data"]) for _, fields in valkey.xrange(stream)]
    assert sorted(payload["n"] for payload in said) == list(range(10))
    assert said[0].keys() == {"n"}


def test_a_table_of_a_database_is_read_in_parts_that_miss_nothing(run, orders_database, topic):
    ended = run(
        "publish", table="orders", **IN_DATABASE, partition_column="number", tasks=4, to_topic=topic.name
    )

    found = sorted(payloads(topic), key=lambda order: order["cents"])
    assert (ended.code, ended.report["messages"]) == (0, 500)
    assert [order["cents"] for order in found] == [order["cents"] for order in ORDERS]
    assert found[0]["number"] is None
    assert found[1] == {
        "number": 1,
        "customer": "c1",
        "cents": 101,
        "price": "1.01",
        "ordered_at": "2026-03-01T00:01:00.000000",
        "is_paid": True,
    }


def test_a_query_of_a_database_is_read_in_parts(run, orders_database, topic):
    query = "SELECT number, cents FROM orders WHERE cents >= 200 AND number IS NOT NULL"

    ended = run(
        "publish", query=query, **IN_DATABASE, partition_column="number", tasks=3, to_topic=topic.name
    )

    assert ended.code == 0
    assert sorted(order["cents"] for order in payloads(topic)) == list(range(200, 600))


def test_a_table_is_read_through_jdbc(run, spark, topic, tmp_path, monkeypatch):
    # Derby comes with Spark; any other driver is a jar that spark-submit gets with --jars.
    spark._jvm.System.setProperty("derby.stream.error.file", f"{tmp_path}/derby.log")
    url = f"jdbc:derby:{tmp_path}/derby;create=true"
    spark.range(0, 50).selectExpr("id AS n").write.format("jdbc").options(url=url, dbtable="numbers").save()
    monkeypatch.setenv("CONQUIET_JDBC_URL", url)

    ended = run(
        "publish", table="numbers", **{"in": "jdbc"}, partition_column="n", tasks=2, to_topic=topic.name
    )
    queried = run(
        "publish", query='SELECT "n" FROM numbers WHERE "n" < 5', **{"in": "jdbc"}, to_topic=topic.name
    )

    missing = run("publish", table="nowhere", **{"in": "jdbc"}, to_topic=topic.name)

    assert (ended.code, ended.report["messages"], queried.report["messages"]) == (0, 50, 5)
    assert missing.code == ExitCode.DATA
    assert "SQLSyntaxErrorException: Table/View 'NOWHERE' does not exist" in missing.report["error"]
    assert sorted(row["n"] for row in payloads(topic)) == sorted([*range(50), *range(5)])


def test_a_named_write_that_is_run_again_adds_nothing(run, topic):
    options = {"query": "SELECT id FROM range(100)", "to_topic": topic.name, "dedupe_id": "nightly"}

    run("publish", **options)
    again = run("publish", **options)
    other = run("publish", **options | {"dedupe_id": "another"})

    assert (again.code, other.code) == (0, 0)
    assert len(payloads(topic)) == 200


def test_rows_named_by_columns_are_added_once_however_they_are_divided(run, topic):
    options = {"to_topic": topic.name, "dedupe_columns": "id", "key": "id"}

    run("publish", query="SELECT id FROM range(0, 60, 1, 2)", **options)
    run("publish", query="SELECT id FROM range(0, 100, 1, 5)", **options)

    assert sorted(row["id"] for row in payloads(topic)) == list(range(100))


def test_names_of_columns_tell_microseconds_and_nulls_apart(run, topic):
    query = """SELECT * FROM VALUES
        (TIMESTAMP'2024-01-01 00:00:00.000001', 1, 'a'), (TIMESTAMP'2024-01-01 00:00:00.000002', 1, 'b'),
        (NULL, 1, 'c'), (NULL, 2, 'd'), (TIMESTAMP'2024-01-01 00:00:00.000001', NULL, 'e')
        AS t(at, n, what)"""

    ended = run("publish", query=query, to_topic=topic.name, dedupe_columns="at,n")

    assert ended.code == 0
    assert sorted(row["what"] for row in payloads(topic)) == ["a", "b", "c", "d", "e"]


def test_rows_without_a_value_in_the_dedupe_column_fail_the_job(run, topic):
    query = "SELECT * FROM VALUES (CAST(NULL AS INT), 'a'), (CAST(NULL AS INT), 'b') AS t(order_id, what)"

    ended = run("publish", query=query, to_topic=topic.name, dedupe_columns="order_id")

    assert ended.code == ExitCode.DATA
    assert "a row has no value in the dedupe column order_id" in ended.stderr


def test_messages_of_a_topic_become_totals(run, topic, valkey):
    messages = [Message(payload=order, key=order["customer"]) for order in ORDERS]
    Producer(valkey).send_many(topic.name, messages)
    totals = Topics(valkey).create(f"{topic.name}-totals", partitions=2)

    ended = run(
        "aggregate",
        topic=topic.name,
        schema="customer STRING, cents BIGINT",
        by="customer",
        window="365 days",
        sum="cents",
        avg="cents",
        min="cents",
        max="cents",
        to_topic=totals.name,
        key="customer",
    )

    found = {total["customer"]: total for total in payloads(totals)}
    mine = [order["cents"] for order in ORDERS if order["customer"] == "c3"]
    assert (ended.code, ended.report["rows"], ended.report["messages"]) == (0, 500, 7)
    assert ended.report["rows_with_null"] == 0
    assert found["c3"]["sum_cents"] == sum(mine)
    assert found["c3"]["count"] == len(mine)
    assert (found["c3"]["min_cents"], found["c3"]["max_cents"]) == (min(mine), max(mine))
    assert found["c3"]["avg_cents"] == sum(mine) / len(mine)


def test_a_table_becomes_totals_by_customer_and_hour_and_a_retry_adds_nothing(run, orders_database, topic):
    options = {
        "table": "orders",
        **IN_DATABASE,
        "partition_column": "number",
        "tasks": 2,
        "time": "ordered_at",
        "by": "customer",
        "window": "1 hour",
        "sum": "cents",
        "to_topic": topic.name,
        "key": "customer",
        "dedupe_id": "run-7",
    }

    first = run("aggregate", **options)
    again = run("aggregate", **options)
    with orders_database.begin() as connection:
        connection.execute(text("UPDATE orders SET cents = cents + 1000 WHERE number = 1"))
    changed = run("aggregate", **options)

    expected: dict[Any, Any] = {}
    for order in ORDERS:
        group = (order["customer"], f"2026-03-01T0{order['at'] // 60}:00:00.000000")
        expected[group] = expected.get(group, 0) + order["cents"]
    found = payloads(topic)
    assert (first.code, again.code, changed.code) == (0, 0, 0)
    assert len(found) == len(expected) + 1
    expected["c1", "2026-03-01T00:00:00.000000"] += 1000
    # The last one that says something of a group is the one that counts.
    assert {(total["customer"], total["window_start"]): total["sum_cents"] for total in found} == expected


def test_rows_without_a_value_are_counted(run, topic, valkey):
    Producer(valkey).send_many(topic.name, [{"cents": 1, "who": "a"}, {"cents": "no number", "who": "b"}])

    ended = run(
        "aggregate",
        topic=topic.name,
        schema="who STRING, cents BIGINT",
        by="who",
        window="1 hour",
        sum="cents",
        to_topic=topic.name,
    )

    assert (ended.report["rows"], ended.report["rows_with_null"]) == (2, 1)


def test_nothing_to_read_is_not_an_error(run, topic):
    ended = run("publish", query="SELECT id FROM range(10)", where="id > 10", to_topic=topic.name)

    assert (ended.code, ended.report["rows"], ended.report["messages"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"query": "SELECT INTERVAL 1 DAY AS x"}, "column x of type interval day cannot be written as JSON"),
        ({"query": "SELECT map(1, 2) AS x"}, "column x has keys of type int; JSON has text only"),
        ({"query": "SELECT double('NaN') AS x FROM range(3)"}, "column x has a NaN or an infinity"),
        ({"query": "SELECT 1 AS x", "key": "y"}, "there is no column y; there are x"),
        ({"query": "SELECT y FROM range(1)"}, "UNRESOLVED_COLUMN"),
        ({"query": "SELEC 1"}, "PARSE_SYNTAX_ERROR"),
        ({"table": "nowhere"}, "TABLE_OR_VIEW_NOT_FOUND"),
        ({"files": "/nowhere/at.parquet"}, "PATH_NOT_FOUND"),
    ],
)
def test_rows_that_cannot_be_read_or_encoded_are_reported(run, topic, options, sentence):
    ended = run("publish", to_topic=topic.name, **options)

    assert ended.code == ExitCode.DATA
    assert sentence in ended.report["error"]
    assert "\n" not in ended.report["error"]
    assert payloads(topic) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"table": "nowhere"}, "the database has no table 'nowhere'"),
        ({"query": "SELECT nothing FROM orders"}, "cannot be read"),
        ({"table": "orders", "partition_column": "customer", "tasks": 2}, "'customer' has no numbers"),
        ({"table": "orders", "partition_column": "nothing", "tasks": 2}, "has no column 'nothing'"),
    ],
)
def test_tables_that_a_database_does_not_have_are_reported(run, orders_database, topic, options, sentence):
    ended = run("publish", **IN_DATABASE, to_topic=topic.name, **options)

    assert ended.code == ExitCode.DATA
    assert sentence in ended.report["error"]


def test_values_that_are_not_what_the_first_rows_were_are_reported(run, tmp_path, topic, monkeypatch):
    url = f"sqlite:///{tmp_path}/loose.db"
    with create_engine(url).begin() as connection:
        connection.execute(text("CREATE TABLE loose (n)"))
        connection.execute(text("INSERT INTO loose VALUES (:n)"), [{"n": 1}] * 1_000 + [{"n": "text"}])
    monkeypatch.setenv("CONQUIET_DATABASE_URL", url)

    ended = run("publish", query="SELECT n FROM loose", **IN_DATABASE, to_topic=topic.name)

    assert ended.code == ExitCode.DATA
    assert "column 'n' was taken for int64, and some value is not" in ended.report["error"]


def test_a_server_that_stops_in_the_middle_is_reported(run, monkeypatch):
    # The rows of one task are there at once, those of the other are long in coming.
    nap = "reflect('java.lang.Thread', 'sleep', bigint(if(id < 2000, 0, 5)))"
    slow = f"SELECT id, {nap} AS slow FROM range(0, 4000, 1, 2)"
    with EmbeddedServer() as server, ThreadPoolExecutor(1) as pool:
        monkeypatch.setenv("CONQUIET_REDIS_URL", server.url)
        with open_client(server.url) as client:
            stream = Topics(client).create("orders").keys.stream(0)

            def end_the_server():
                eventually(lambda: client.xlen(stream) > 0)
                server.stop()

            ending = pool.submit(end_the_server)
            ended = run("publish", query=slow, to_topic="orders", retry_timeout_ms=100)
            ending.result()

    assert ended.code == ExitCode.REDIS
    assert "\n" not in ended.report["error"]


def test_progress_is_lines_in_a_log(run, topic):
    slow = "SELECT id, reflect('java.lang.Thread', 'sleep', bigint(5)) AS slow FROM range(0, 200, 1, 8)"

    ended = run("publish", query=slow, to_topic=topic.name, progress_every_s=0.1)

    lines = ended.stderr.splitlines()
    assert lines[0] == "publish: begun"
    assert lines[-1].startswith("publish: done after")
    assert any("of 8 tasks" in line for line in lines)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(spark):
    terminal = Terminal()

    with Progress(spark, "publish", every_s=60, out=terminal):
        spark.range(0, 200, 1, 8).selectExpr("reflect('java.lang.Thread', 'sleep', bigint(5))").collect()

    assert "█" in terminal.getvalue()
    assert "of 8 tasks" in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 2
