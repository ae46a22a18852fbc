"""DrainOperator and failures: which ones are the message's, which ones are Airflow's to retry."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
from sqlalchemy import insert, text

from conquiet.consume import dead_letter_stream
from tests.conftest import effects
from tests.eventually import HANG_S
from tests.services import database, free_port, open_engine
from tests.with_airflow import handlers
from tests.with_airflow.conftest import tries, xcom
from tests.with_airflow.test_drain_operator import drain_dag, enqueue

pytestmark = pytest.mark.usefixtures("airflow_connection")

RETRIES = {"retries": 2, "retry_delay": timedelta(0)}


def test_failed_messages_stay_pending_and_the_task_succeeds(run_dag, orders, valkey, stream, notes):
    enqueue(orders, 6)

    run = run_dag(drain_dag(stream, handler=handlers.record_even, **RETRIES))

    assert (run.state, tries(run, "drain")) == ("success", 1)
    assert notes() == ["0", "2", "4"]
    assert xcom(run, "drain")["failed"] == 3
    assert valkey.xpending(stream, "billing")["pending"] == 3


def test_too_many_failed_messages_fail_the_task_without_retries(run_dag, orders, valkey, stream):
    enqueue(orders, 9)

    run = run_dag(drain_dag(stream, handler=handlers.record_even, max_failures=2, **RETRIES))

    assert (run.state, tries(run, "drain")) == ("failed", 1)
    assert valkey.xpending(stream, "billing")["pending"] >= 2


def test_with_raise_the_first_failed_message_ends_the_task_and_airflow_retries(run_dag, orders, stream):
    enqueue(orders, 2)

    run = run_dag(drain_dag(stream, handler=handlers.record_even, on_error="raise", **RETRIES))

    assert (run.state, tries(run, "drain")) == ("failed", 3)


def test_messages_over_max_deliveries_become_dead_letters(run_dag, orders, valkey, stream):
    enqueue(orders, 2)
    arguments = {"handler": handlers.record_even, "on_error": "raise", "max_deliveries": 2, **RETRIES}

    run = run_dag(drain_dag(stream, **arguments))

    assert (run.state, xcom(run, "drain")["dead_lettered"]) == ("success", 1)
    assert valkey.xlen(dead_letter_stream(stream)) == 1


def test_a_server_that_is_unavailable_uses_airflows_retries(run_dag, stream, airflow_connection, monkeypatch):
    away = airflow_connection | {"port": free_port()}
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(away))

    run = run_dag(drain_dag(stream, **RETRIES))

    assert (run.state, tries(run, "drain")) == ("failed", 3)


def test_a_database_that_is_unavailable_uses_airflows_retries_and_no_message_is_read(
    run_dag, orders, valkey, stream, airflow_connection, monkeypatch
):
    enqueue(orders, 1)
    extra = {"db_url": f"postgresql+psycopg://127.0.0.1:{free_port()}/shop"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(airflow_connection | {"extra": extra})
    )

    run = run_dag(drain_dag(stream, **RETRIES))

    assert (run.state, tries(run, "drain")) == ("failed", 3)
    assert valkey.xpending(stream, "billing")["pending"] == 0


def test_a_malformed_entry_counts_as_failed_and_other_entries_are_handled(
    run_dag, orders, valkey, stream, notes
):
    enqueue(orders, 1)
    malformed = valkey.xadd(stream, {"data": "no json"})
    enqueue(orders, 1)

    report = xcom(run_dag(drain_dag(stream)), "drain")

    assert (report["handled"], report["failed_ids"], notes()) == (2, [malformed], ["0", "0"])


def test_a_database_that_closes_a_connection_uses_airflows_retries_and_dead_letters_no_message(
    run_dag, orders, valkey, stream, airflow_connection, monkeypatch, tmp_path
):
    enqueue(orders, 5)
    has_died: list[bool] = []

    def die_once(msg, session):
        if msg.payload["number"] == 1 and not has_died:
            has_died.append(True)
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        handlers.record(msg, session)

    with database("postgres", tmp_path) as url:
        effects.create(open_engine(url))
        monkeypatch.setenv(
            "AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(airflow_connection | {"extra": {"db_url": url}})
        )
        run = run_dag(drain_dag(stream, handler=die_once, **RETRIES))

    report = xcom(run, "drain")
    assert (run.state, tries(run, "drain")) == ("success", 2)
    # The rest was handled by the first try, over a new connection; the retry takes back the one that broke.
    assert (report["handled"], report["failed"]) == (1, 0)
    assert valkey.xpending(stream, "billing")["pending"] == 0


@pytest.mark.parametrize(
    "mistake",
    [
        {"handler": "tests.with_airflow.handlers:nobody"},
        {"handler": "no colon"},
        {"max_messages": "many"},
        {"max_messages": 0},
        {"inbox": "no table name; --"},
        {"redis_streams_conn_id": "nobody"},
    ],
    ids=lambda mistake: next(iter(mistake.values())),
)
def test_mistakes_fail_at_once(run_dag, stream, mistake):
    run = run_dag(drain_dag(stream, **mistake, **RETRIES))

    assert (run.state, tries(run, "drain")) == ("failed", 1)


def test_airflows_own_database_is_refused(run_dag, orders, stream, airflow_connection, monkeypatch, notes):
    from airflow.configuration import conf

    enqueue(orders, 1)
    extra = {"db_url": conf.get("database", "sql_alchemy_conn")}
    monkeypatch.setenv(
        "AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(airflow_connection | {"extra": extra})
    )

    run = run_dag(drain_dag(stream, **RETRIES))

    assert (run.state, tries(run, "drain")) == ("failed", 1)
    assert notes() == []


def test_a_timeout_of_the_task_rolls_back_the_message_in_the_handler_and_the_retry_begins_with_it(
    run_dag, orders, stream, notes, valkey
):
    enqueue(orders, 3)
    arguments = {"handler": f"{__name__}:record_slowly_once", "inbox": True}

    run = run_dag(drain_dag(stream, **arguments, **RETRIES, execution_timeout=timedelta(seconds=2)))

    assert (run.state, tries(run, "drain")) == ("success", 2)
    # No attempt was counted: the second message came for the first time, twice.
    assert notes() == ["0 at 1", "1 at 1", "2 at 1"]
    assert valkey.xpending(stream, "billing")["pending"] == 0


_slow: set[int] = set()


def record_slowly_once(msg, session) -> None:
    number = msg.payload["number"]
    session.execute(insert(effects), {"entry_id": msg.id, "note": f"{number} at {msg.delivery_count}"})
    if number == 1 and not _slow:
        _slow.add(number)
        time.sleep(HANG_S)
