"""What the findings of a run tell apart: what is lost, what a failover lost, and what is not finished yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import Engine, create_engine, insert

from conquiet import EmbeddedServer
from conquiet.mq import Producer, Topics
from tests.chaos.effects import Effects, Sent
from tests.chaos.findings import count_settled, left_to_do, unfinished_messages
from tests.chaos.plan import GROUP, TOPIC, Plan, effects

PLAN = Plan(messages=3, keys=1, partitions=1)


@pytest.fixture
def engine(tmp_path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/effects.db")
    effects.create(engine)
    yield engine
    engine.dispose()


def add_effects(engine: Engine, *rows: tuple[str, int, str]) -> None:
    with engine.begin() as connection:
        for key, number, entry_id in rows:
            row = {"key": key, "number": number, "entry_id": entry_id, "attempt": 1}
            connection.execute(insert(effects), row)


def test_a_message_without_effect_is_lost_if_it_is_acked_and_unfinished_if_it_is_not(engine):
    with EmbeddedServer() as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        stream = Topics(client).create(TOPIC, 1).keys.stream(0)
        producer = Producer(client)
        sent = {
            ("key-0", number): producer.send(TOPIC, {"key": "key-0", "number": number}, key="key-0")
            for number in (1, 2, 3)
        }
        client.xgroup_create(stream, GROUP, "0-0")
        client.xreadgroup(GROUP, "worker-1", {stream: ">"}, count=2)
        client.xack(stream, GROUP, sent["key-0", 1])

        unfinished = unfinished_messages(client, PLAN)

        assert unfinished == {("key-0", 2), ("key-0", 3)}
        assert [*Effects(engine, Sent(entries=sent)).broken(unfinished=unfinished)] == [
            "1 messages lost: finished without an effect: key-0:1"
        ]
        assert [*left_to_do(client, PLAN)] == [f"{stream} has 1 pending entries", f"{stream} has a lag of 1"]
        assert count_settled(client, PLAN) == 1


def test_what_a_failover_lost_may_lack_its_effect_and_what_it_did_not_lose_may_not(engine):
    entries = {("key-1", 1): "1-1", ("key-1", 2): "1-2", ("key-1", 3): "1-3"}
    sent = Sent(entries=entries, lost={("key-1", 2): {"1-2"}})
    add_effects(engine, ("key-1", 1, "1-1"))

    assert [*Effects(engine, sent).broken(unfinished=())] == [
        "1 messages lost: finished without an effect: key-1:3"
    ]
    assert [*sent.broken()] == []


def test_what_a_replica_had_confirmed_may_not_be_lost(engine):
    sent = Sent(entries={("key-0", 1): "1-1", ("key-1", 1): "1-2"}, lost={("key-0", 1): {"1-1"}})

    assert [*sent.broken()] == ["1 messages lost that a replica had confirmed: key-0:1"]


def test_a_message_that_was_sent_again_after_a_failover_has_one_effect_for_each_entry(engine):
    sent = Sent(entries={("key-0", 1): "2-1", ("key-0", 2): "2-2"}, lost={("key-0", 1): {"1-1"}})
    add_effects(engine, ("key-0", 1, "1-1"), ("key-0", 1, "2-1"), ("key-0", 2, "2-2"), ("key-0", 2, "2-2"))

    found = Effects(engine, sent)

    assert [*found.broken(unfinished=())] == ["1 messages with more than one effect: key-0:2"]
    assert (found.count, found.of_lost, found.doubled_by_failover) == (4, 1, 1)


def test_a_batch_that_was_handled_lost_and_sent_again_is_in_order(engine):
    lost = {("key-0", number): {f"1-{number}"} for number in (1, 2, 3)}
    sent = Sent(entries={("key-0", number): f"2-{number}" for number in (1, 2, 3, 4)}, lost=lost)
    add_effects(engine, *(("key-0", number, f"1-{number}") for number in (1, 2, 3)))
    add_effects(engine, *(("key-0", number, f"2-{number}") for number in (1, 2, 4, 3)))

    found = Effects(engine, sent)

    assert [*found.broken(unfinished=())] == [
        "1 messages whose effect came after that of a later message of the same key: key-0:3"
    ]
    assert found.doubled_by_failover == 3
