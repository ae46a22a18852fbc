"""What an operator of Airflow sees of a drain: its log, its numbers, its lineage and its link."""

from __future__ import annotations

import importlib
import json
import logging
import pkgutil
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.sdk import DAG, BaseOperator
from sqlalchemy import make_url, text

from airflow_provider_conquiet.airflow_names import AirflowFailException
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.links import DocumentationLink, target_of
from airflow_provider_conquiet.operators.claim_stale import ClaimStaleOperator
from airflow_provider_conquiet.operators.dead_letters import ReplayDeadLettersOperator
from airflow_provider_conquiet.operators.drain import DrainOperator
from airflow_provider_conquiet.operators.enqueue import EnqueueOperator
from airflow_provider_conquiet.operators.take import TakeOperator
from airflow_provider_conquiet.sensors.ack_by_run import AckByRunSensor
from airflow_provider_conquiet.sensors.drain import DrainSensor
from conquiet import DbSession, DeadLetter, Inbox, QueueConfig, RedisStreamsQueue
from conquiet.consume.batch_handler import batch_handler
from conquiet.errors import InboxRowLockedError
from tests.eventually import eventually
from tests.services import database, open_engine
from tests.with_airflow import handlers

pytestmark = pytest.mark.usefixtures("airflow_connection")


def shows(lines, thread: threading.Thread, *parts: str) -> bool:
    """Whether a line with all the parts has come before the drain's end."""

    def is_there() -> bool:
        return any(all(part in line for part in parts) for line in lines())

    eventually(lambda: is_there() or not thread.is_alive())
    return is_there()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture):
    """The lines of the drain's log so far."""
    caplog.set_level(logging.INFO, logger="airflow_provider_conquiet")
    names = ("airflow_provider_conquiet.drain_log", "airflow_provider_conquiet.drains")
    return lambda: [record.getMessage() for record in caplog.records if record.name in names]


def drain_of(stream: str, **arguments: Any) -> Any:
    defaults: dict[str, Any] = {
        "stream": stream,
        "group": "billing",
        "handler": handlers.record,
        "idle_ms": 20,
    }
    with DAG("drain_test", schedule=None):
        return DrainOperator(task_id="drain", **defaults | arguments)


def test_the_log_has_the_begin_and_the_report_as_a_table(orders, stream, context, lines):
    orders.enqueue_many([{"number": number} for number in range(4)])
    drain = drain_of(stream, handler=handlers.record_even)

    report = drain.execute(context(drain))

    begin, *table = lines()
    consumer = "airflow:dag:drain:run:-1:1"
    assert begin.startswith(f"draining stream '{stream}' for group 'billing' as consumer '{consumer}': 4 new")
    shown = {line.split()[0]: line.split()[1] for line in table if line.startswith("  ")}
    assert any(
        line.startswith(f"drained stream '{stream}' for group 'billing': stopped by idle") for line in table
    )
    assert (shown["read"], shown["handled"], shown["failed"]) == ("4", "2", "2")
    assert any(line.split()[:2] == ["ValueError", "2,"] for line in table)
    assert report["failures_by_error"] == {"ValueError": 2}
    assert report["per_second"] > 0


def test_the_log_says_what_was_taken_over_from_which_try(orders, stream, context, lines, notes):
    orders.enqueue_many([{"number": number} for number in range(3)])
    first = drain_of(stream, handler=fail_at_one, on_error="raise")
    with pytest.raises(RuntimeError):
        first.execute(context(first))
    assert any(line.split() == ["handled", "1"] for line in lines())
    second = drain_of(stream)

    second.execute(context(second, try_number=2))

    assert "taking over from try 1: 2 messages that it left pending" in lines()
    assert notes() == ["0", "1", "2"]


def test_a_claim_of_what_is_stale_takes_nothing_over_and_does_not_say_so(orders, stream, context, lines):
    orders.enqueue({"number": 1})
    first = drain_of(stream, handler=handlers.record_even)
    first.execute(context(first))
    with DAG("claim_test", schedule=None):
        claim = ClaimStaleOperator(
            task_id="drain", stream=stream, group="billing", handler=handlers.record, min_idle_ms=3_600_000
        )

    report = claim.execute(context(claim, try_number=2))

    assert report["handled"] == 0
    assert any("1 messages are pending at consumer 'airflow:dag:drain:run:-1:1'" in line for line in lines())
    assert not any("taking over" in line for line in lines())


def test_the_log_shows_progress_while_the_drain_goes_on(orders, stream, context, lines):
    orders.enqueue_many([{"number": number} for number in range(3)])
    go_on = threading.Event()

    def handler(msg, session):
        if msg.payload["number"] == 2:
            assert go_on.wait(600)
        if msg.payload["number"] == 1:
            raise KeyError("one")

    drain = drain_of(stream, handler=handler, progress_every_s=0.05)
    thread = threading.Thread(target=drain.execute, args=[context(drain)])
    thread.start()
    try:
        assert shows(lines, thread, "1 messages handled", "failed: 1 KeyError")
        assert shows(lines, thread, "has been in the handler for")
    finally:
        go_on.set()
        thread.join()


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_the_log_says_that_a_lock_of_the_database_is_waited_for(
    orders, stream, context, lines, monkeypatch, tmp_path, kind
):
    orders.enqueue({"number": 0})
    with database(kind, tmp_path) as url:
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": kind, **fields_of(url)}))
        engine = open_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE stock (n INTEGER PRIMARY KEY, held INTEGER)"))
            connection.execute(text("INSERT INTO stock VALUES (1, 0)"))
        drain = drain_of(stream, handler=take_stock, progress_every_s=0.05, db_conn_id="shop")
        thread = threading.Thread(target=drain.execute, args=[context(drain)])
        with engine.begin() as frozen:
            frozen.execute(text("UPDATE stock SET held = 1 WHERE n = 1"))
            thread.start()
            try:
                assert shows(lines, thread, "waiting for a lock of the database for")
            finally:
                frozen.rollback()
                thread.join()
        engine.dispose()

    assert any(line.split() == ["handled", "1"] for line in lines())


def test_a_frozen_try_delays_the_next_one_by_a_lock_timeout_that_the_log_names_and_uses_no_attempt(
    orders, stream, context, lines, valkey, valkey_url, monkeypatch, tmp_path, caplog
):
    entry_id = orders.enqueue({"number": 0})
    config = QueueConfig(stream, "billing", "airflow:dag:drain:run:-1:1")
    seen: list[int] = []

    def handler(msg: Any, _session: Any) -> None:
        seen.append(msg.attempt)

    def count_deliveries() -> int:
        return valkey.xpending_range(stream, "billing", "-", "+", 10)[0]["times_delivered"]

    drain = drain_of(stream, handler=handler, inbox=True, progress_every_s=0.05, db_conn_id="shop")
    with database("postgres", tmp_path) as url, RedisStreamsQueue.from_url(valkey_url, config) as first_try:
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "postgres", **fields_of(url)}))
        engine = open_engine(url)
        Inbox().create_table(engine)
        (msg,) = first_try.read(50)
        with suppress(FrozenError), DbSession(engine) as session:
            assert Inbox().record(session, msg)
            before = count_deliveries()
            with pytest.raises(InboxRowLockedError, match=entry_id):
                drain.execute(context(drain, try_number=2))
            assert (count_deliveries(), seen) == (before, [])
            # Its session ends only now.
            raise FrozenError
        report = drain.execute(context(drain, try_number=3))
        engine.dispose()

    assert f"inbox row locked, entry {entry_id}" in caplog.text
    assert any("waiting for a lock of the database for" in line for line in lines())
    assert (report["handled"], report["failed"], seen) == (1, 0, [before + 1])


class FrozenError(Exception):
    """Ends the transaction of a try that did not go on."""


def test_one_handler_that_waits_is_shown_though_others_go_on(orders, stream, context, lines):
    orders.enqueue_many([{"number": 0}, {"number": 1}])
    go_on = threading.Event()
    seen: list[str] = []

    def handler(msg, session):
        if msg.payload["number"] == 0:
            assert go_on.wait(600)
            return
        waits = [line for line in lines() if "has been in the handler for" in line]
        seen.extend(waits)
        if not waits:
            orders.enqueue({"number": 1})

    limits: dict[str, Any] = {"concurrency": 2, "order_by": False, "max_messages": 3_000}
    drain = drain_of(stream, handler=handler, progress_every_s=0.02, **limits)
    thread = threading.Thread(target=drain.execute, args=[context(drain)])
    thread.start()
    try:
        assert shows(lines, thread, "has been in the handler for")
    finally:
        go_on.set()
        thread.join()

    assert seen


def test_what_a_handler_wants_again_is_not_shown_as_handled(orders, stream, context, lines):
    orders.enqueue_many([{"number": number} for number in range(3)])
    go_on = threading.Event()

    def handler(msg, session):
        if msg.payload["number"] == 2:
            assert go_on.wait(600)
        return DeadLetter("no such order") if msg.payload["number"] == 1 else None

    drain = drain_of(stream, handler=handler, progress_every_s=0.05)
    thread = threading.Thread(target=drain.execute, args=[context(drain)])
    thread.start()
    try:
        assert shows(lines, thread, "1 messages handled", "failed: 1 DeadLetter")
    finally:
        go_on.set()
        thread.join()


def test_a_handler_of_batches_stays_one(orders, stream, context, lines, notes):
    orders.enqueue_many([{"number": number} for number in range(5)])
    sizes = []

    @batch_handler
    def record_all(msgs, session):
        sizes.append(len(msgs))
        for msg in msgs:
            handlers.record(msg, session)

    drain = drain_of(stream, handler=record_all)
    drain.execute(context(drain))

    assert notes() == ["0", "1", "2", "3", "4"]
    assert max(sizes) > 1


def test_a_batch_that_fails_is_counted_message_by_message_as_it_is_handled_again(
    orders, stream, context, lines
):
    orders.enqueue_many([{"number": number} for number in range(6)])
    go_on = threading.Event()

    @batch_handler
    def handler(messages, session):
        numbers = [msg.payload["number"] for msg in messages]
        if numbers == [5]:
            assert go_on.wait(600)
        if 2 in numbers:
            raise KeyError("two")

    drain = drain_of(stream, handler=handler, progress_every_s=0.05)
    thread = threading.Thread(target=drain.execute, args=[context(drain)])
    thread.start()
    try:
        assert shows(lines, thread, "4 messages handled", "failed: 1 KeyError")
    finally:
        go_on.set()
        thread.join()
    assert not any("2 KeyError" in line or "6 KeyError" in line for line in lines())


def fields_of(url: str) -> dict[str, Any]:
    parts = make_url(url)
    names = {"login": parts.username, "password": parts.password, "schema": parts.database}
    return {"host": parts.host, "port": parts.port, **names}


def fail_at_one(msg, session):
    if msg.payload["number"] == 1:
        raise RuntimeError("the first try ends here")
    handlers.record(msg, session)


def take_stock(_msg, session):
    session.execute(text("UPDATE stock SET held = 2 WHERE n = 1"))


def test_openlineage_gets_the_stream_and_its_row_counts(orders, stream, context):
    with DAG("enqueue_test", schedule=None):
        enqueue: Any = EnqueueOperator(
            task_id="enqueue", stream=stream, payloads=[{"number": 1}, {"number": 2}]
        )
    drain = drain_of(stream)
    enqueue.execute(context(enqueue))
    drain.execute(context(drain))

    [output] = enqueue.get_openlineage_facets_on_complete(None).outputs
    [read] = drain.get_openlineage_facets_on_complete(None).inputs

    assert (output.name, read.name) == (stream, stream)
    assert output.outputFacets["outputStatistics"].rowCount == 2
    assert read.inputFacets["inputStatistics"].rowCount == 2


def classes_of_the_provider() -> list[type[BaseOperator]]:
    """Operators, sensors, and those behind the decorators, of every module."""
    import airflow_provider_conquiet as package

    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
    known, waiting = set[type[BaseOperator]](), [BaseOperator]
    while waiting:
        for one in waiting.pop().__subclasses__():
            if one not in known:
                known.add(one)
                waiting.append(one)
    ours = {one for one in known if one.__module__.startswith(f"{package.__name__}.")}
    return sorted(ours, key=lambda one: one.__name__)


@pytest.mark.parametrize("kind", classes_of_the_provider(), ids=lambda kind: kind.__name__)
def test_each_operator_sensor_and_decorator_has_the_link(kind):
    assert any(isinstance(link, DocumentationLink) for link in kind.operator_extra_links)


def test_the_classes_that_have_it_are_all_of_them():
    names = {one.__name__ for one in classes_of_the_provider()}

    assert names >= {"DrainOperator", "DrainDecoratedOperator", "EnqueueOperator", "EnqueueDecoratedOperator"}
    assert names >= {"TaskOperator", "TaskDecoratedOperator", "ClaimStaleOperator", "TakeOperator"}
    assert names >= {"TrimOperator", "BacklogSensor", "MessageSensor", "DrainSensor", "AckByRunSensor"}
    assert "SparkPublishOperator" in names


def test_openlineage_gets_the_rows_of_a_drain_that_failed(orders, stream, context):
    orders.enqueue_many([{"number": number} for number in (0, 2, 1, 4)])
    of_handler = drain_of(stream, handler=handlers.record_even, on_error="raise")
    with pytest.raises(ValueError, match="odd"):
        of_handler.execute(context(of_handler))
    of_limit = drain_of(stream, group="others", handler=handlers.record_even, max_failures=1)
    with pytest.raises(AirflowFailException):
        of_limit.execute(context(of_limit))
    sensor = DrainSensor(
        task_id="s", stream=f"{stream}:2", group="g", handler=fail_at_one, count=3, idle_ms=20
    )
    sensor.on_error = "raise"
    with RedisStreamsHook() as hook:
        hook.enqueue(f"{stream}:2", [{"number": 0}, {"number": 1}])
    with pytest.raises(RuntimeError):
        sensor.poke(context(sensor))

    assert [rows_of(one) for one in (of_handler, of_limit, sensor)] == [2, 2, 1]


def rows_of(operator: Any) -> int:
    """What OpenLineage gets of a task, by the extractor that Airflow has for it."""
    found: Any = DefaultExtractor(operator).extract_on_failure(None)
    [read] = found.inputs
    return int(read.inputFacets["inputStatistics"].rowCount)


def test_openlineage_gets_what_a_run_took_and_what_was_replayed(orders, stream, context):
    orders.enqueue_many([{"number": 1}, {"number": 3}])
    drain = drain_of(stream, handler=handlers.record_even, max_failures=None)
    drain.execute(context(drain))
    stale = ClaimStaleOperator(
        task_id="claim",
        stream=stream,
        group="billing",
        handler=handlers.record,
        min_idle_ms=0,
        max_deliveries=1,
    )
    stale.execute(context(stale))
    replay: Any = ReplayDeadLettersOperator(task_id="replay", stream=stream)
    replay.execute(context(replay))
    take: Any = TakeOperator(task_id="take", stream=stream, group="others")
    take.execute(context(take))

    [written] = replay.get_openlineage_facets_on_complete(None).outputs
    [read] = take.get_openlineage_facets_on_complete(None).inputs

    assert written.outputFacets["outputStatistics"].rowCount == 2
    assert (read.name, read.inputFacets["inputStatistics"].rowCount) == (stream, 2)


def test_every_operator_has_a_link(stream, monkeypatch):
    drain = drain_of(stream)

    assert [type(link) for link in drain.operator_extra_links] == [DocumentationLink]
    assert target_of(drain) == f"/conquiet/topic?name={quote_plus(stream)}"
    monkeypatch.setenv("AIRFLOW__CONQUIET__PAGE", "False")
    assert target_of(drain).endswith("docs/airflow.md#drainoperator-and-taskdrain")


def test_the_link_of_what_acks_or_publishes_leads_to_its_stream(stream):
    ack = AckByRunSensor(task_id="ack", taken={"stream": stream})

    assert target_of(ack) == f"/conquiet/topic?name={quote_plus(stream)}"
    for name in ("to_topic", "to_stream"):
        assert target_of(SimpleNamespace(**{name: stream})) == f"/conquiet/topic?name={quote_plus(stream)}"  # type: ignore[arg-type]
