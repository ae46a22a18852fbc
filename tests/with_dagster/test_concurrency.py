"""Several messages at once, and batches, in steps of Dagster."""

# No `from __future__ import annotations` here: Dagster reads the types of the functions.

import threading
import uuid
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import select

from conquiet import batch_handler
from conquiet.mq import Message, Producer, Topics
from dagster_conquiet import (
    ClaimStaleConfig,
    DatabaseResource,
    DrainConfig,
    DrainSpec,
    TopicDrainConfig,
    TopicDrainSpec,
    build_claim_stale_job,
    build_drain_asset,
    drain_asset,
    drain_op,
)
from tests.conftest import effects
from tests.eventually import HANG_S
from tests.with_dagster.handlers import note_effects

HANDLERS = "tests.with_dagster.handlers"


class Prices(dg.ConfigurableResource):
    """A resource of the user's own."""

    factor: int


@pytest.fixture
def notes(engine):
    """The notes of all effects, in the order of their entries."""

    def read() -> list[str]:
        with engine.connect() as connection:
            return list(connection.scalars(select(effects.c.note).order_by(effects.c.entry_id)))

    return read


def metadata_of(result: Any, node: str) -> dict[str, Any]:
    return result.asset_materializations_for_node(node)[0].metadata


def test_a_run_chooses_how_many_messages_are_handled_at_once(
    stream, resources, database_url, instance, enqueue, pending
):
    enqueue(12)
    barrier, connections = threading.Barrier(4), set()

    def handler(msg, session):
        connections.add(id(session.connection.connection.driver_connection))
        barrier.wait(HANG_S)

    # Without an inbox: with one SQLite, which has one writer, lets one handler in at a time.
    spec = DrainSpec(stream=stream, group="billing", handler=handler, inbox=None)
    asset = build_drain_asset(spec, key="bills")
    config = {"ops": {"bills": {"config": {"concurrency": 4, "no_order": True, "idle_ms": 100}}}}
    pooled = resources | {"database": DatabaseResource(url=database_url, pool_size=4)}

    result = dg.materialize([asset], resources=pooled, instance=instance, run_config=config)

    assert metadata_of(result, "bills")["handled"].value == 12
    assert (len(connections), pending()) == (4, 0)


def test_messages_of_one_field_are_handled_in_order(stream, resources, instance, queue):
    queue.enqueue_many([{"n": n, "customer": n % 3} for n in range(60)])
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

    @drain_asset(
        DrainSpec(
            stream=stream,
            group="billing",
            config=DrainConfig(concurrency=4, order_by="customer", idle_ms=100),
        )
    )
    def bills(msg, session):
        seen[msg.payload["customer"]].append(msg.payload["n"])

    dg.materialize([bills], resources=resources, instance=instance)

    assert seen == {customer: list(range(customer, 60, 3)) for customer in range(3)}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [({"concurrency": 2}, "say what keeps its order"), ({"order_by": "a", "no_order": True}, "exclude")],
)
def test_several_at_once_need_one_order_when_definitions_load_and_in_the_launchpad(
    stream, resources, instance, config, sentence
):
    with pytest.raises(ValueError, match=sentence):
        DrainConfig(**config)

    asset = build_drain_asset(
        DrainSpec(stream=stream, group="billing", handler=f"{HANDLERS}:note_effect"), key="bills"
    )
    run_config = {"ops": {"bills": {"config": config}}}
    with pytest.raises(Exception, match=sentence):
        dg.materialize([asset], resources=resources, instance=instance, run_config=run_config)


def test_a_topic_keeps_the_order_of_its_keys(client, resources, instance):
    topic = Topics(client).create(f"orders-{uuid.uuid4().hex[:12]}", partitions=1)
    messages = [Message(payload={"n": n}, key=f"k{n % 3}") for n in range(30)]
    Producer(client).send_many(topic.name, messages)
    seen: dict[str, list[int]] = {"k0": [], "k1": [], "k2": []}

    @drain_asset(
        TopicDrainSpec(
            topic=topic.name,
            partitions=1,
            group="billing",
            config=TopicDrainConfig(concurrency=3, idle_ms=100),
        )
    )
    def bills(msg, session):
        seen[msg.key].append(msg.payload["n"])

    dg.materialize([bills], resources=resources, instance=instance, partition_key="0")

    assert seen == {f"k{rest}": list(range(rest, 30, 3)) for rest in range(3)}


@pytest.mark.parametrize("handler", [f"{HANDLERS}:note_effects", note_effects])
def test_a_handler_of_batches_gets_up_to_a_batch_size(
    stream, resources, instance, enqueue, notes, pending, handler
):
    enqueue(10)
    spec = DrainSpec(
        stream=stream, group="billing", handler=handler, config=DrainConfig(batch_size=4, idle_ms=100)
    )

    result = dg.materialize([build_drain_asset(spec, key="bills")], resources=resources, instance=instance)

    metadata = metadata_of(result, "bills")
    assert metadata["handled"].value == 10
    assert "10 messages" in metadata["messages_over_time"].value
    assert (notes(), pending()) == (["4"] * 8 + ["2"] * 2, 0)


def test_a_decorated_function_handles_batches_with_context_and_resources(
    stream, resources, instance, enqueue
):
    enqueue(5)
    seen = []

    @drain_op(DrainSpec(stream=stream, group="billing", config=DrainConfig(idle_ms=100)))
    @batch_handler
    def bills(context, messages, session, prices: Prices):
        """Many rows."""
        seen.append(([msg.payload["n"] * prices.factor for msg in messages], bool(context.run_id)))

    @dg.job(resource_defs=resources | {"prices": Prices(factor=2)})
    def billing():
        bills()

    assert billing.execute_in_process(instance=instance).success
    assert seen == [([0, 2, 4, 6, 8], True)]
    assert bills.description == "Many rows."


def test_a_recovery_handles_what_is_stale_in_batches(stream, resources, instance, enqueue, make_queue, notes):
    enqueue(5)
    make_queue("dead").read(block_ms=100, count=5)
    spec = DrainSpec(stream=stream, group="billing", handler=note_effects)
    job = build_claim_stale_job(spec, config=ClaimStaleConfig(min_idle_ms=0))

    assert job.execute_in_process(resources=resources, instance=instance).success
    together = [int(note) for note in notes()]
    assert (len(together), max(together) > 1) == (5, True)


def test_a_window_of_the_past_is_handled_again_in_batches(stream, resources, instance, enqueue, notes):
    enqueue(6)
    today = datetime.now(UTC).date()
    days = dg.DailyPartitionsDefinition(str(today), end_offset=1)
    spec = DrainSpec(
        stream=stream, group="again", handler=note_effects, config=DrainConfig(batch_size=4, idle_ms=100)
    )
    asset = build_drain_asset(spec, key="bills_by_day", partitions_def=days)

    dg.materialize([asset], resources=resources, instance=instance, partition_key=str(today))

    assert notes() == ["4"] * 4 + ["2"] * 2
