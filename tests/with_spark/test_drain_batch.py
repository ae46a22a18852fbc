"""Micro-batches into a database: a transaction for each partition, each handled once."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException
from sqlalchemy import create_engine, text

from conquiet.consume import Retry
from conquiet.db import Inbox
from conquiet.errors import ConquietError
from conquiet.spark import drain_batch
from conquiet.spark.task_context import current_task
from tests.with_spark.server_side import add_orders, streams_of


def insert_numbers(rows, session):
    """The handler of these tests."""
    for row in rows:
        session.execute(text("INSERT INTO numbers VALUES (:number)"), json.loads(row["data"]))


@pytest.fixture
def numbers_table(tmp_path) -> str:
    """The URL of a database that has the table."""
    database = f"sqlite:///{tmp_path}/numbers.db?timeout=30"
    with create_engine(database).begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number INTEGER)"))
    return database


def numbers_of(database: str) -> list[int]:
    with create_engine(database).connect() as connection:
        return sorted(connection.execute(text("SELECT number FROM numbers")).scalars())


def test_a_batch_that_is_run_again_changes_nothing(spark, valkey, valkey_url, topic, numbers_table, tmp_path):
    for partition, stream in enumerate(streams_of(topic)):
        add_orders(valkey, stream, range(partition * 100, partition * 100 + 100))
    drain = drain_batch(
        "tests.with_spark.test_drain_batch:insert_numbers", numbers_table, name="numbers", parts=2
    )
    flag = tmp_path / "failed"

    def handle(df, batch_id):
        drain(df, batch_id)
        if not flag.exists():
            flag.touch()
            raise RuntimeError("dies after its transactions, before Spark knows")

    def run() -> None:
        source = spark.readStream.format("redis-stream").options(
            url=valkey_url, topic=topic.name, start="earliest"
        )
        query = source.load().writeStream.foreachBatch(handle)
        query = (
            query.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(PySparkException, match="before Spark knows"):
        run()
    run()

    assert numbers_of(numbers_table) == list(range(300))


@pytest.mark.parametrize(("begun_with", "replayed_with"), [(3, 5), (7, 2)])
def test_a_replayed_batch_that_is_divided_in_another_way_changes_nothing(
    spark, valkey, topic, numbers_table, read, begun_with, replayed_with
):
    for partition, stream in enumerate(streams_of(topic)):
        add_orders(valkey, stream, range(partition * 100, partition * 100 + 100))
    handler = "tests.with_spark.test_drain_batch:insert_all_but_the_last_part"
    drain = drain_batch(handler, numbers_table, name="n", parts=4)

    with pytest.raises(PySparkException, match="dies in one of its parts"):
        drain(read(topic=topic.name).repartition(begun_with), 0)
    before = numbers_of(numbers_table)
    drain = drain_batch(insert_numbers, numbers_table, name="n", parts=9)
    drain(read(topic=topic.name).repartition(replayed_with), 0)

    assert 0 < len(before) < 300
    assert numbers_of(numbers_table) == list(range(300))


def test_a_batch_that_was_begun_with_other_columns_is_refused(spark, numbers_table):
    numbers = spark.range(100).selectExpr("to_json(struct(id as number)) as data")
    drain_batch(insert_numbers, numbers_table, name="n", parts=2)(numbers, 0)
    with_more = numbers.selectExpr("data", "'new' AS note")

    with pytest.raises(ConquietError, match="divided by other columns than data, note"):
        drain_batch(insert_numbers, numbers_table, name="n", parts=2)(with_more, 0)
    drain_batch(insert_numbers, numbers_table, name="n", parts=2, by=["data"])(with_more, 0)

    assert numbers_of(numbers_table) == list(range(100))


def insert_all_but_the_last_part(rows, session):
    """Some parts are committed, one never is."""
    insert_numbers(rows, session)
    if current_task().partitionId() == 3:
        raise RuntimeError("dies in one of its parts")


def test_rows_without_ids_are_known_by_what_they_say(spark, numbers_table):
    df = spark.range(100).selectExpr("to_json(struct(id as number)) as data", "map('a', id) as tags")

    for division in (df.repartition(3), df.coalesce(1)):
        drain_batch(insert_numbers, numbers_table, name="n", parts=2)(division, 0)

    assert numbers_of(numbers_table) == list(range(100))


def test_rows_of_one_key_are_handled_in_the_order_of_their_stream(spark, valkey, topic, numbers_table, read):
    [stream, *_] = streams_of(topic)
    add_orders(valkey, stream, range(300))

    drain_batch(insert_numbers, numbers_table, name="n", by=["stream"])(read(topic=topic.name), 0)

    with create_engine(numbers_table).connect() as connection:
        numbers = connection.execute(text("SELECT number FROM numbers ORDER BY rowid")).scalars()
        assert list(numbers) == list(range(300))


def test_a_failed_partition_leaves_nothing_behind(spark, valkey_url, valkey, stream, numbers_table, read):
    add_orders(valkey, stream, range(100))

    def fail_at_the_end(rows, session):
        insert_numbers(rows, session)
        raise RuntimeError("not this time")

    with pytest.raises(PySparkException, match="not this time"):
        drain_batch(fail_at_the_end, numbers_table, name="n", parts=2)(read(stream=stream), 0)
    drain_batch(insert_numbers, numbers_table, name="n", parts=2)(read(stream=stream), 0)

    assert numbers_of(numbers_table) == list(range(100))


def test_a_new_checkpoint_handles_what_is_new_under_the_same_name(
    spark, valkey, valkey_url, stream, numbers_table, tmp_path
):
    def run(checkpoint: str, start: str) -> None:
        source = spark.readStream.format("redis-stream").options(url=valkey_url, stream=stream, start=start)
        drain = drain_batch(
            "tests.with_spark.test_drain_batch:insert_numbers", numbers_table, name="numbers", parts=2
        )
        query = source.load().writeStream.foreachBatch(drain)
        query = query.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination()

    add_orders(valkey, stream, range(10))
    run("first", "earliest")
    [next_id, *_] = add_orders(valkey, stream, range(10, 20))

    run("second", next_id)

    assert numbers_of(numbers_table) == list(range(20))


def test_a_row_that_the_inbox_refuses_but_does_not_have_is_an_error(
    spark, valkey, stream, numbers_table, read
):
    add_orders(valkey, stream, range(10))
    engine = create_engine(numbers_table)
    Inbox().create_table(engine)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TRIGGER refuses BEFORE INSERT ON conquiet_inbox WHEN NEW.entry_id LIKE 'part %' "
                "BEGIN SELECT RAISE(ABORT, 'as a constraint of the owner would'); END"
            )
        )

    with pytest.raises(
        PySparkException, match=r"the database refused the inbox row of .* but the inbox does not"
    ):
        drain_batch(insert_numbers, numbers_table, name="n", parts=2)(read(stream=stream), 0)

    assert numbers_of(numbers_table) == []


def yield_numbers(rows, session):
    """Does nothing until its result is iterated over."""
    insert_numbers(rows, session)
    yield


async def await_numbers(rows, session):
    """Does nothing until it is awaited."""
    insert_numbers(rows, session)


def return_unfinished(rows, session):
    """Looks like a plain function."""
    return yield_numbers(rows, session)


def ask_for_retry(rows, session):
    """Answers as a handler of single messages may."""
    insert_numbers(rows, session)
    return Retry(reason="the shop is closed")


@pytest.mark.parametrize("handler", [yield_numbers, await_numbers])
def test_a_handler_that_would_not_run_is_refused(spark, valkey, stream, numbers_table, read, handler):
    add_orders(valkey, stream, range(10))
    reference = f"tests.with_spark.test_drain_batch:{handler.__name__}"

    for given in (handler, reference):
        with pytest.raises((TypeError, PySparkException), match="would not run when it is called"):
            drain_batch(given, numbers_table, name="n", parts=2)(read(stream=stream), 0)
    drain_batch(insert_numbers, numbers_table, name="n", parts=2)(read(stream=stream), 0)

    assert numbers_of(numbers_table) == list(range(10))


@pytest.mark.parametrize(
    ("handler", "message"),
    [(return_unfinished, "which has not run yet"), (ask_for_retry, "the shop is closed")],
)
def test_an_answer_that_is_not_final_fails_the_partition(
    spark, valkey, stream, numbers_table, read, handler, message
):
    add_orders(valkey, stream, range(10))
    reference = f"tests.with_spark.test_drain_batch:{handler.__name__}"

    with pytest.raises(PySparkException, match=message):
        drain_batch(reference, numbers_table, name="n", parts=2)(read(stream=stream), 0)
    drain_batch(insert_numbers, numbers_table, name="n", parts=2)(read(stream=stream), 0)

    assert numbers_of(numbers_table) == list(range(10))


def test_a_handler_that_commits_by_itself_and_fails_gets_its_rows_again(
    spark, valkey, stream, numbers_table, read
):
    add_orders(valkey, stream, range(10))

    def commit_and_fail(rows, session):
        session.execute(text("INSERT INTO numbers VALUES (100)"))
        session.connection.connection.commit()
        raise RuntimeError("behind its own commit")

    with pytest.raises(PySparkException, match="behind its own commit"):
        drain_batch(commit_and_fail, numbers_table, name="n", parts=2)(read(stream=stream), 0)
    drain_batch(insert_numbers, numbers_table, name="n", parts=2)(read(stream=stream), 0)

    assert [number for number in numbers_of(numbers_table) if number < 100] == list(range(10))
