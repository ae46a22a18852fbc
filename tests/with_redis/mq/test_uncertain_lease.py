"""A lease that is uncertain by the owner's own clock, and fine by the server's: nothing is given away."""

from __future__ import annotations

import math

import pytest
from sqlalchemy import insert, select

from conquiet import DrainLimits
from conquiet.consume.engine import DrainLoop
from conquiet.consume.handler_kinds import new_handling
from conquiet.mq import ConsumerConfig, LeaseLostError
from conquiet.mq.own.channel import PartitionChannel
from conquiet.queue.ends import EndWatch
from tests.conftest import effects
from tests.with_databases.consuming import as_async, async_engine_of
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import pending


class Worker:
    """The loop of one partition, whose lease nobody renews; its handler gets the channel too."""

    def __init__(self, topic, engine, handler, *, is_async):
        config = ConsumerConfig(consumer_name="worker-1", block_ms=10)
        self.channel = PartitionChannel(Hand(topic).leased, config, EndWatch(topic.client))
        self.channel.lease_valid_until = math.inf
        call = lambda msg, session: handler(self.channel, msg, session)  # noqa: E731
        if is_async:
            call, engine = as_async(call), async_engine_of(engine)
        self.handling = new_handling(call, engine, before_commit=self.channel.check_lease)
        self.loop = DrainLoop(self.channel, self.handling, DrainLimits())


@pytest.fixture(params=["plain", "async"])
def make_worker(topic, engine, request):
    made = []

    def make(handler):
        made.append(Worker(topic, engine, handler, is_async=request.param == "async"))
        return made[-1]

    yield make
    for worker in made:
        worker.handling.close()


def write(msg, session):
    session.execute(insert(effects), {"entry_id": msg.id, "note": ""})


def written(engine):
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def test_what_was_committed_is_settled_and_what_was_not_begun_is_as_it_was(topic, send, engine, make_worker):
    ids = send(4)

    class UncertainAfterCommit:
        """Certain for the checks of two messages, and then no more."""

        checks = 0

        def __le__(self, _now):
            self.checks += 1
            return self.checks > 4

    worker = make_worker(lambda _worker, msg, session: write(msg, session))
    worker.channel.lease_valid_until = UncertainAfterCommit()

    with pytest.raises(LeaseLostError):
        worker.loop.run()

    assert written(engine) == ids[:2]
    assert {entry_id: count for entry_id, (_, count) in pending(topic).items()} == {ids[2]: 0, ids[3]: 0}


def test_the_message_at_hand_is_rolled_back_and_those_before_it_are_settled(topic, send, engine, make_worker):
    ids = send(4)

    def lose_certainty(worker, msg, session):
        write(msg, session)
        if msg.id == ids[2]:
            worker.lease_valid_until = 0.0

    with pytest.raises(LeaseLostError):
        make_worker(lose_certainty).loop.run()

    assert written(engine) == ids[:2]
    assert {entry_id: count for entry_id, (_, count) in pending(topic).items()} == {ids[2]: 1, ids[3]: 0}


def test_a_lease_that_the_server_gave_to_another_changes_nothing(topic, send, engine, make_worker, client):
    ids = send(3)

    def lose_it(worker, msg, session):
        write(msg, session)
        if msg.id == ids[1]:
            client.delete(topic.keys.lease(worker.partition.group, 0))
            worker.lease_valid_until = 0.0

    with pytest.raises(LeaseLostError):
        make_worker(lose_it).loop.run()

    assert written(engine) == ids[:1]
    assert {count for _, count in pending(topic).values()} == {1}
    assert list(pending(topic)) == ids
