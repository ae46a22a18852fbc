"""On a full server (maxmemory, noeviction) a streaming query goes on: its group follows it."""

from __future__ import annotations

import pytest

from conquiet.queue import StreamWriter, peek_backlog
from conquiet.spark.entry_ids import EntryId
from conquiet.spark.scripts import move_group
from tests.services import REDIS_KINDS
from tests.with_redis.full_server import fill, server_of_its_own


@pytest.mark.parametrize("kind", REDIS_KINDS)
def test_the_group_of_a_query_is_created_and_moved_on_a_full_server(kind: str):
    with server_of_its_own(kind) as client:
        writer = StreamWriter(client, "orders")
        ids: list[EntryId] = []
        sent = fill(client, lambda _, text: ids.append(EntryId.parse(writer.enqueue({"text": text}))))

        move_group(client, "orders", "query", ids[0], None)
        move_group(client, "orders", "query", ids[-2], None)

        backlog = peek_backlog(client, stream="orders", group="query", count_limit=sent)
        assert backlog.last_delivered_id == str(ids[-2])
