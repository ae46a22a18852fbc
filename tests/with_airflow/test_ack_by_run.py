"""Messages of a run: acked when it succeeds, handed back when it fails, kept alive while it runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from asgiref.sync import async_to_sync

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.take import TakeOperator, messages_of
from airflow_provider_conquiet.run_messages import RunMessages, RunMessagesGoneError
from airflow_provider_conquiet.run_state import RunState
from airflow_provider_conquiet.sensors.ack_by_run import AckByRunSensor
from airflow_provider_conquiet.triggers.run import RunTrigger
from conquiet.consume import dead_letter_stream
from tests.eventually import eventually
from tests.with_airflow.conftest import states, xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")


def shipping(stream: str, ship: Any, **take: Any) -> DAG:
    """A DAG whose run takes messages, ships them, and acks them if that succeeds."""
    with DAG("shipping", schedule=None) as dag:
        taken = TakeOperator(task_id="take", stream=stream, group="shipping", **take)
        AckByRunSensor(task_id="ack", taken=taken.output, poke_interval=0.2)
        task(task_id="ship")(ship)(taken.output)
    return dag


def payloads(taken: dict[str, Any]) -> list[int]:
    return [msg.payload["number"] for msg in messages_of(taken)]


def fail(taken: dict[str, Any]) -> None:
    raise ValueError("no truck")


def pending(valkey, stream) -> int:
    return valkey.xpending(stream, "shipping")["pending"]


def test_what_a_run_has_taken_is_acked_when_it_succeeds(run_dag, orders, valkey, stream):
    orders.enqueue_many({"number": number} for number in range(5))

    run = run_dag(shipping(stream, payloads, max_messages=3))

    assert str(run.state) == "success"
    assert xcom(run, "ship") == [0, 1, 2]
    assert xcom(run, "ack")["acked"] == 3
    assert (pending(valkey, stream), valkey.xinfo_consumers(stream, "shipping")) == (0, [])


def test_what_a_failed_run_has_taken_is_handed_back_to_the_next_one(run_dag, orders, valkey, stream):
    orders.enqueue_many({"number": number} for number in range(2))

    failed = run_dag(shipping(stream, fail))
    in_between = pending(valkey, stream)
    next_run = run_dag(shipping(stream, payloads))

    assert (str(failed.state), xcom(failed, "ack")["handed_back"], in_between) == ("failed", 2, 2)
    assert (xcom(next_run, "take")["redelivered"], xcom(next_run, "ship")) == (2, [0, 1])
    assert pending(valkey, stream) == 0


def test_a_message_that_too_many_runs_failed_with_becomes_a_dead_letter(run_dag, orders, valkey, stream):
    orders.enqueue({"number": 1})

    for _ in range(2):
        run_dag(shipping(stream, fail, max_deliveries=2))
    third = run_dag(shipping(stream, fail, max_deliveries=2))

    assert states(third)["take"] == "skipped"
    assert (valkey.xlen(dead_letter_stream(stream)), pending(valkey, stream)) == (1, 0)


def test_a_malformed_entry_becomes_a_dead_letter_and_holds_nothing_up(run_dag, orders, valkey, stream):
    valkey.xadd(stream, {"data": "no json"})
    orders.enqueue({"number": 1})

    run = run_dag(shipping(stream, payloads))

    assert (xcom(run, "take")["dead_lettered"], xcom(run, "ship")) == (1, [1])
    assert valkey.xlen(dead_letter_stream(stream)) == 1


def test_without_a_message_the_run_is_skipped(run_dag, stream):
    run = run_dag(shipping(stream, payloads))

    assert states(run) == {"take": "skipped", "ack": "skipped", "ship": "skipped"}


def test_a_retry_of_the_task_takes_the_same_messages_again(orders, context, stream):
    orders.enqueue_many({"number": number} for number in range(4))
    operator = TakeOperator(task_id="take", stream=stream, group="shipping", max_messages=2)

    first = operator.execute(context(operator, try_number=1))
    second = operator.execute(context(operator, try_number=2))
    of_another_run = operator.execute(context(operator, run_id="another"))

    assert first["ids"] == second["ids"]
    assert not set(first["ids"]) & set(of_another_run["ids"])


def test_a_run_that_was_not_renewed_loses_its_messages_to_another_one(orders, context, stream):
    orders.enqueue({"number": 1})
    operator = TakeOperator(task_id="take", stream=stream, group="shipping", claim_idle_ms=1)
    dead = operator.execute(context(operator))
    operator.claim_idle_ms = 60_000
    kept = TakeOperator(task_id="take", stream=stream, group="shipping", skip_on_empty=False)

    assert kept.execute(context(kept, run_id="another"))["ids"] == []
    operator.claim_idle_ms = 1
    assert operator.execute(context(operator, run_id="third"))["ids"] == dead["ids"]
    with pytest.raises(RunMessagesGoneError, match="taken by another run"):
        messages_of(dead)


def test_messages_that_are_kept_alive_are_no_other_runs(orders, context, stream, valkey):
    orders.enqueue({"number": 1})
    operator = TakeOperator(task_id="take", stream=stream, group="shipping")
    taken = operator.execute(context(operator))
    valkey.xclaim(stream, "shipping", taken["consumer"], 0, taken["ids"], idle=59_000, justid=True)

    with RedisStreamsHook() as hook:
        assert RunMessages.of_report(taken).keep(hook) == 1

    (entry,) = valkey.xpending_range(stream, "shipping", "-", "+", 10)
    assert entry["time_since_delivered"] < 59_000
    assert entry["times_delivered"] == 1


def take_with_little_memory(stream: str, tries: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.with_airflow.memory_task", stream, "150", str(tries)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("tiny", [0, 40])
def test_a_task_with_150_mb_takes_40_messages_of_4_mb_a_few_in_each_run(orders, valkey, stream, tiny):
    large = "x" * (4 << 20)
    for number in range(tiny + 40):
        orders.enqueue({"text": "x" if number < tiny else large})

    report = take_with_little_memory(stream, tries=2)

    # Some more than 32 MiB, as one read of 8 MiB brings them.
    assert 8 <= report["read"].count(len(large)) <= 11
    assert report["taken"][0] == report["taken"][1]
    assert pending(valkey, stream) == len(report["read"])


def test_what_an_earlier_try_took_is_taken_again_whatever_the_limits_are_now(orders, context, stream, valkey):
    """It is acked when the run succeeds."""
    orders.enqueue_many({"text": "x" * 1_000} for _ in range(30))
    first = TakeOperator(task_id="take", stream=stream, group="shipping", max_messages=20)
    taken = first.execute(context(first))
    second = TakeOperator(task_id="take", stream=stream, group="shipping", max_messages=5, max_bytes=2_000)

    again = second.execute(context(second, try_number=2))
    of_another_run = second.execute(context(second, run_id="another"))

    assert (again["ids"], again["taken"]) == (taken["ids"], 20)
    assert of_another_run["taken"] == 5
    assert pending(valkey, stream) == 25


STATE = RunState(dag_id="dag", run_id="run", task_id="ack", leaves=["ship", "mapped"])


@pytest.mark.parametrize(
    ("changed", "end"),
    [
        ({}, True),
        ({"ship": "running"}, None),
        ({"ship": None}, None),
        ({"ship": "up_for_retry"}, None),
        ({"ship": "failed"}, False),
        ({"mapped_1": "upstream_failed"}, False),
        ({"check": "failed"}, True),  # not one of the last tasks
        ({"ship": "skipped"}, True),
        # The run was marked as failed: tasks that were left are skipped, and this one has ended with them.
        ({"ship": "skipped", "ack": "failed"}, None),
        ({"ship": "skipped", "ack": "skipped"}, None),
    ],
)
def test_a_run_succeeds_if_its_last_tasks_do(changed, end):
    ended = {
        "take": "success",
        "check": "success",
        "ship": "success",
        "mapped_0": "success",
        "ack": "deferred",
    }

    assert STATE.end_of(ended | changed) is end


@pytest.mark.parametrize(
    ("changed", "end"),
    [
        ({"ack": "success"}, True),  # the run was marked as a success
        ({"ack": "success", "ship": "failed"}, False),
        ({"ack": "failed", "ship": "skipped"}, False),  # marked as failed
        ({"ack": "skipped"}, False),  # it took too long
        ({"ack": None, "ship": None}, None),  # cleared: it begins again
        ({"ack": "success", "ship": "running"}, None),  # this task alone was marked
    ],
)
def test_a_run_that_somebody_ends_is_a_success_if_it_was_marked_as_one(changed, end):
    ended = {"take": "success", "check": "success", "ship": "success", "ack": "deferred"}

    assert STATE.killed_end_of(ended | changed) is end
    assert STATE.killed_end_of({}) is False


def state_of(dag: DAG, task_id: str = "ack") -> RunState:
    context: Any = {"dag": dag, "ti": type("Ti", (), {"dag_id": "d", "run_id": "r", "task_id": task_id})}
    return RunState.of_context(context, AckByRunSensor)


def test_the_last_tasks_of_a_dag_are_those_that_airflow_decides_by(stream):
    dag = shipping(stream, payloads)
    with dag:
        close = task(task_id="close")(lambda: None)().as_teardown()
        dag.get_task("ship") >> close

    assert state_of(dag).leaves == ["ship"]


def test_a_task_whose_name_ends_in_a_number_is_no_mapped_task_and_is_waited_for(stream):
    dag = shipping(stream, payloads)
    with dag:
        task(task_id="ack_1")(lambda: None)()
    state = state_of(dag)
    ended = {"take": "success", "ship": "success", "ack": "deferred"}

    assert state.end_of(ended | {"ack_1": "running"}) is None
    assert state.end_of(ended | {"ack_1": "failed"}) is False
    assert state.end_of(ended | {"ack_1": "success"}) is True
    assert (
        state.end_of({"take": "success", "ship_0": "failed", "ship_1": "success", "ack": "running"}) is False
    )


def test_two_takes_of_one_run_do_not_wait_for_one_another(run_dag, orders, valkey, stream):
    orders.enqueue_many({"number": number} for number in range(2))
    dag = shipping(stream, payloads, max_messages=1)
    with dag:
        more = TakeOperator(task_id="take_more", stream=stream, group="shipping", max_messages=1)
        dag.get_task("take") >> more
        AckByRunSensor(task_id="ack_more", taken=more.output, poke_interval=0.2)

    run = run_dag(dag)

    assert str(run.state) == "success"
    assert (xcom(run, "ack")["acked"], xcom(run, "ack_more")["acked"]) == (1, 1)
    assert pending(valkey, stream) == 0


def test_a_task_behind_the_sensor_fails_it_at_once_since_it_would_wait_for_ever(stream):
    dag = shipping(stream, payloads)
    with dag:
        dag.get_task("ack") >> task(task_id="close")(lambda: None)()

    with pytest.raises(ValueError, match="waits for all other tasks of its run, and close for it"):
        state_of(dag)


def messages_of_run(stream: str) -> dict[str, Any]:
    """The fields of a `RunMessages`."""
    names = {"group": "shipping", "consumer": "c", "redis_streams_conn_id": "redis_streams_default"}
    return {"stream": stream, **names, "claim_idle_ms": 60_000}


def test_the_trigger_is_made_again_from_what_it_serializes(stream):
    messages = messages_of_run(stream)
    state = {"dag_id": "d", "run_id": "r", "task_id": "ack", "leaves": ["ship"]}
    trigger = RunTrigger(state=state, messages=messages, poll_interval_s=2.0)

    _, arguments = trigger.serialize()

    assert RunTrigger(**arguments).serialize() == trigger.serialize()


def test_the_trigger_asks_airflow_on_the_triggerers_own_event_loop(monkeypatch):
    """The triggerer of Airflow 3.1 answers nowhere else, and finds it only from the threads of asgiref."""
    asked = []

    async def ask() -> None:
        asked.append(asyncio.get_running_loop())

    def settle(self: RunMessages, hook: RedisStreamsHook, *, is_success: bool) -> dict[str, bool]:
        async_to_sync(ask)()
        return {"is_success": is_success}

    async def first_event() -> tuple[Any, asyncio.AbstractEventLoop]:
        messages = messages_of_run("s") | {"claim_idle_ms": 1}
        trigger = RunTrigger(state=asdict(STATE), messages=messages, poll_interval_s=2.0)
        return (await anext(trigger.run())).payload, asyncio.get_running_loop()

    monkeypatch.setattr(RunState, "will_succeed", lambda _self: True)
    monkeypatch.setattr(RunMessages, "keep", lambda _self, _hook: 0)
    monkeypatch.setattr(RunMessages, "settle", settle)

    payload, loop = asyncio.run(first_event())

    assert payload == {"is_success": True}
    assert asked == [loop]


def take_for(orders, context, stream: str, run_id: str) -> dict[str, Any]:
    """What a run has taken, as its trigger gets it."""
    orders.enqueue({"number": 1})
    take = TakeOperator(task_id="take", stream=stream, group="shipping")
    return asdict(RunMessages.of_report(take.execute(context(take, run_id=run_id))))


def test_the_trigger_goes_on_when_airflow_did_not_answer(
    orders, context, stream, valkey, monkeypatch, caplog
):
    answers = [AirflowRuntimeError(ErrorResponse(detail={"status_code": 503})), True]

    def will_succeed(_self: RunState) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def first_event() -> Any:
        messages = take_for(orders, context, stream, "run")
        trigger = RunTrigger(state=asdict(STATE), messages=messages, poll_interval_s=0.01)
        return (await anext(trigger.run())).payload

    monkeypatch.setattr(RunState, "will_succeed", will_succeed)

    payload = asyncio.run(first_event())

    assert (payload["acked"], pending(valkey, stream)) == (1, 0)
    assert "503" in caplog.text
    assert "trying again in 1 s" in caplog.text


def test_many_triggers_of_one_connection_share_a_few_connections(
    orders, context, stream, valkey, monkeypatch
):
    asked: list[RunState] = []
    taken = [take_for(orders, context, stream, f"run-{number}") for number in range(30)]
    opened = lambda: int(valkey.info("stats")["total_connections_received"])  # noqa: E731
    connected = lambda: int(valkey.info("clients")["connected_clients"])  # noqa: E731
    before = opened(), connected()
    monkeypatch.setattr(RunState, "will_succeed", lambda state: asked.append(state))

    async def scenario() -> None:
        settings: dict[str, Any] = {"state": asdict(STATE), "poll_interval_s": 60}
        triggers = [RunTrigger(messages=messages, **settings) for messages in taken]
        waiting = [asyncio.ensure_future(anext(trigger.run())) for trigger in triggers]
        await asyncio.to_thread(eventually, lambda: len(asked) == len(taken))
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)

    asyncio.run(scenario())

    assert opened() <= before[0] + 4
    eventually(lambda: connected() <= before[1])


@pytest.mark.parametrize(
    ("end", "left"), [(True, 0), (False, 1), (None, 1)], ids=["success", "failed", "not over"]
)
def test_a_trigger_whose_task_is_killed_settles_by_how_the_run_has_ended(
    orders, context, stream, valkey, monkeypatch, end, left
):
    monkeypatch.setattr(RunState, "end_when_killed", lambda _self: end)
    messages = take_for(orders, context, stream, "run")
    trigger = RunTrigger(state=asdict(STATE), messages=messages, poll_interval_s=2.0)

    asyncio.run(trigger.on_kill())

    next_run = TakeOperator(task_id="take", stream=stream, group="shipping", skip_on_empty=False)
    assert pending(valkey, stream) == left
    assert next_run.execute(context(next_run, run_id="next"))["taken"] == (end is False)


def test_a_run_that_has_ended_already_is_not_waited_for(orders, context, stream, monkeypatch):
    orders.enqueue({"number": 1})
    dag = shipping(stream, payloads)
    take: Any = dag.get_task("take")
    ack: Any = dag.get_task("ack")
    ack.taken = take.execute(context(take))
    monkeypatch.setattr(RunState, "will_succeed", lambda _self: True)

    assert ack.execute(context(ack) | {"dag": dag})["acked"] == 1


def test_what_is_no_output_of_a_take_fails_at_once(context):
    sensor = AckByRunSensor(task_id="ack", taken="ids", deferrable=False)

    with pytest.raises(Exception, match="output of a TakeOperator"):
        sensor.poke(context(sensor))
