"""What every task puts on the events of its outlets: counts, and never a payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, chain

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.claim_stale import ClaimStaleOperator
from airflow_provider_conquiet.operators.consumers import PruneConsumersOperator
from airflow_provider_conquiet.operators.dead_letters import ReplayDeadLettersOperator
from airflow_provider_conquiet.operators.drain import DrainOperator
from airflow_provider_conquiet.operators.enqueue import EnqueueOperator
from airflow_provider_conquiet.operators.take import TakeOperator
from airflow_provider_conquiet.operators.trim import TrimOperator
from airflow_provider_conquiet.sensors.ack_by_run import AckByRunSensor
from airflow_provider_conquiet.sensors.drain import DrainSensor
from tests.with_airflow.conftest import asset_events, states, xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")

EVEN = "tests.with_airflow.handlers:record_even"


def test_each_task_puts_its_counts_on_the_events_of_its_outlets(run_dag, stream, valkey):
    """One run of all classes, each behind the other, with an asset of its own."""
    make: dict[str, Callable[..., Any]] = {
        "enqueue": lambda **names: EnqueueOperator(
            payloads=[{"number": number, "secret": "hidden"} for number in (0, 1, 2)], stream=stream, **names
        ),
        "drain": lambda **names: DrainOperator(handler=EVEN, idle_ms=20, **of_group("billing"), **names),
        "claim": lambda **names: ClaimStaleOperator(
            handler=EVEN, min_idle_ms=0, max_deliveries=1, **of_group("billing"), **names
        ),
        "replay": lambda **names: ReplayDeadLettersOperator(stream=stream, **names),
        "count": lambda **names: DrainSensor(
            handler=EVEN, count=1, idle_ms=20, **of_group("counting"), **names
        ),
        "prune": lambda **names: PruneConsumersOperator(min_idle_ms=0, **of_group("counting"), **names),
        "trim": lambda **names: TrimOperator(stream=stream, retention_length=1_000, **names),
        "take": lambda **names: TakeOperator(max_messages=2, **of_group("shipping"), **names),
    }

    def of_group(group: str) -> dict[str, Any]:
        return {"stream": stream, "group": group}

    def asset(name: str) -> Asset:
        return Asset(f"x-test://{stream.replace(':', '-')}/{name}")

    with DAG("outlets", schedule=None) as dag:
        tasks: list[Any] = []
        for name, operator in make.items():
            outlets: list[Any] = [asset(name)]
            if name == "prune":
                outlets.append(AssetAlias(f"alias-{stream}"))
            tasks.append(operator(task_id=name, outlets=outlets))
        chain(*tasks)
        AckByRunSensor(task_id="ack", taken=tasks[-1].output, poke_interval=0.1, outlets=[asset("ack")])

    run = run_dag(dag)

    assert set(states(run).values()) == {"success"}
    extras = asset_events(run)
    with RedisStreamsHook() as hook:
        of_alias = extras.pop(hook.asset_uri(stream))
    of = {uri.rpartition("/")[2]: extra for uri, extra in extras.items()}
    assert set(of) == {*make, "ack"}
    assert of_alias["pruned"] == of["prune"]["pruned"]
    assert (of["enqueue"]["added"], of["drain"]["failures_by_error"]) == (3, {"ValueError": 1})
    assert (of["claim"]["dead_lettered"], of["replay"]["replayed"]) == (1, 1)
    assert (of["count"]["handled"], of["count"]["wanted"], of["trim"]["removed"]) == (1, 1, 0)
    assert (of["take"]["taken"], of["take"]["last_id"]) == (2, xcom(run, "take")["ids"][-1])
    assert of["ack"]["acked"] == 2
    assert "hidden" not in str(extras)
