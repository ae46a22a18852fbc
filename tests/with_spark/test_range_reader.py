"""A range is read in replies of a few megabytes, the first one too, whatever the stream has beside it."""

from __future__ import annotations

import uuid

import pytest
import redis

from conquiet.queue import open_client
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.read.range_reader import read_range
from conquiet.spark.wire.connection import ServerConnection

MEGABYTE = 1 << 20


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all replies."""
    sizes: list[int] = []
    receive = ServerConnection.receive_raw

    def recorded(connection: ServerConnection) -> object:
        reply = receive(connection)
        sizes.append(len(reply))
        return reply

    monkeypatch.setattr(ServerConnection, "receive_raw", recorded)
    return sizes


def add(valkey: redis.Redis, stream: str, count: int, size: int) -> list[str]:
    pipeline = valkey.pipeline()
    for _ in range(count):
        pipeline.xadd(stream, {"data": b"x" * size})
    return [entry_id.decode() for entry_id in pipeline.execute()]


def read(url: str, stream: str, ids: list[str]) -> int:
    within = IdRange(EntryId.parse(ids[0]), EntryId.parse(ids[-1]))
    return sum(len(entries) for entries in read_range(open_client(url), stream, within, fails_on_loss=True))


def test_large_entries_in_a_stream_of_small_ones_come_in_small_replies(
    valkey_url: str, valkey: redis.Redis, replies: list[int]
) -> None:
    stream = f"test:{uuid.uuid4().hex[:12]}"
    large = add(valkey, stream, 40, MEGABYTE)
    add(valkey, stream, 20_000, 10)

    assert read(valkey_url, stream, large) == 40

    assert max(replies) < 12 * MEGABYTE


def test_large_entries_behind_small_ones_come_in_bounded_replies(
    valkey_url: str, valkey: redis.Redis, replies: list[int]
) -> None:
    stream = f"test:{uuid.uuid4().hex[:12]}"
    ids = add(valkey, stream, 12, 10) + add(valkey, stream, 200, MEGABYTE // 4)

    assert read(valkey_url, stream, ids) == 212

    assert max(replies) < 30 * MEGABYTE
