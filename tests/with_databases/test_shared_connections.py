"""Pools that hand one DBAPI connection to several: an intruder is an error and never a loss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, text

from conquiet import DbError, DbSession, DrainLimits, Inbox, QueueMessage, RedisStreamsQueue, drain
from tests.with_databases.consuming import ConsumeOne, pending
from tests.with_databases.tables import effects, notes, write, write_id


@pytest.fixture(params=[None, StaticPool], ids=["SingletonThreadPool", "StaticPool"])
def memory(request: pytest.FixtureRequest) -> Iterator[Engine]:
    pool = {} if request.param is None else {"poolclass": request.param}
    engine = create_engine("sqlite://", **pool)
    effects.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_messages_are_handled_on_a_database_in_memory(memory: Engine, valkey_queue: RedisStreamsQueue):
    ids = valkey_queue.enqueue_many([{}, {}, {}])

    drain(valkey_queue, write_id, memory, DrainLimits(max_messages=3), inbox=Inbox())

    assert (notes(memory), pending(valkey_queue)) == (ids, 0)


def test_read_through_the_same_engine_does_not_undo_the_message_without_a_word(
    memory: Engine, valkey_queue: RedisStreamsQueue, consume_plainly: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "effect")
        with memory.connect() as connection:
            connection.execute(text("SELECT 1"))

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="shares the connection of a message"):
        consume_plainly(valkey_queue, handler, memory)

    assert (notes(memory), pending(valkey_queue)) == ([], 1)


def test_intruder_whose_error_is_swallowed_is_not_acked(
    memory: Engine, valkey_queue: RedisStreamsQueue, consume_plainly: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "effect")
        try:
            with memory.begin() as connection:
                connection.execute(text("SELECT 1"))
        except DbError:
            pass

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="ended or undone"):
        consume_plainly(valkey_queue, handler, memory, Inbox())

    assert pending(valkey_queue) == 1
