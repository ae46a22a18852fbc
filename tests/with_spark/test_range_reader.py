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

    def recorded(connection: ServerConnection, most_bytes: int | None = None) -> object:
        reply = receive(connection, most_bytes)
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


def test_a_reply_of_large_entries_behind_many_small_ones_is_dropped_and_asked_for_in_parts(
    valkey_url: str, valkey: redis.Redis, replies: list[int]
) -> None:
    stream = f"test:{uuid.uuid4().hex[:12]}"
    ids = add(valkey, stream, 3_000, 10) + add(valkey, stream, 60, MEGABYTE) + add(valkey, stream, 500, 10)

    assert read(valkey_url, stream, ids) == 3_560

    assert max(replies) < 33 * MEGABYTE


def test_small_replies_are_handed_over_as_few_large_batches(
    valkey_url: str, valkey: redis.Redis, replies: list[int]
) -> None:
    stream = f"test:{uuid.uuid4().hex[:12]}"
    pipeline = valkey.pipeline()
    for number in range(12_000):
        pipeline.xadd(stream, {"other": "x"} if number % 5_000 == 4_999 else {"data": str(number)})
    ids = [EntryId.parse(one) for one in pipeline.execute()]
    within = IdRange(ids[0], ids[-1])

    batches = list(read_range(open_client(valkey_url), stream, within, fails_on_loss=True))

    assert len(batches) < 4 < len(replies)
    numbers = [value for batch in batches for value in batch.data.to_pylist()]
    assert numbers == [None if n % 5_000 == 4_999 else b"%d" % n for n in range(12_000)]
    found = [batch.fields_at(index) for batch in batches for index in sorted(batch.others)]
    assert found == [(b"other", b"x")] * 2
    assert [batch.id_at(i) for batch in batches for i in range(len(batch))] == ids
