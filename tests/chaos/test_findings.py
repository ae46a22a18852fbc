"""What the findings of a run tell apart: a message that is lost, and one that is not finished yet."""

from __future__ import annotations

import redis
from sqlalchemy import Engine, create_engine

from conquiet import EmbeddedServer
from conquiet.mq import Producer, Topics
from tests.chaos.findings import broken_by_effects, count_settled, left_to_do, unfinished_messages
from tests.chaos.plan import GROUP, TOPIC, Plan, effects

PLAN = Plan(messages=3, keys=1, partitions=1)


def test_a_message_without_effect_is_lost_if_it_is_acked_and_unfinished_if_it_is_not(tmp_path):
    engine: Engine = create_engine(f"sqlite:///{tmp_path}/effects.db")
    effects.create(engine)
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
        assert [*broken_by_effects(engine, sent, unfinished=unfinished)] == [
            "1 messages lost: finished without an effect: key-0:1"
        ]
        assert [*left_to_do(client, PLAN)] == [f"{stream} has 1 pending entries", f"{stream} has a lag of 1"]
        assert count_settled(client, PLAN) == 1
    engine.dispose()
