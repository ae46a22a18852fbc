"""A server that is away, or full, for a while: reads and writes go on when it is back, each row once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis.exceptions import ResponseError

from conquiet import EmbeddedServer
from conquiet.errors import QueueError
from conquiet.queue import open_client
from conquiet.spark.columns import SCHEMA
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.options import ReadOptions, WriteOptions
from conquiet.spark.outages import Patience, connected
from conquiet.spark.read.range_reader import read_range
from conquiet.spark.read.stream_info import read_info
from conquiet.spark.read.stream_reader import StreamMicroBatchReader
from conquiet.spark.wire.connection import ServerConnection
from conquiet.spark.write.task_writer import TaskWriter, open_target
from tests.eventually import eventually
from tests.services import Client, free_port
from tests.with_spark.server_side import add_orders, numbers_in
from tests.with_spark.test_task_writer import attempt_of, rows_of, send


class Breaking:
    """Cuts connections: each `every`-th command is sent and its reply lost, or it is not sent at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
        self.cuts = self._commands = 0
        self._every = every
        receive, send_packed = ServerConnection._receive, ServerConnection.send

        def receive_or_lose(connection: ServerConnection) -> None:
            if self._is_due():
                connection._connection._sock.close()
            receive(connection)

        def send_or_lose(connection: ServerConnection, *arguments: object) -> None:
            if self._is_due():
                connection._connection._sock.close()
            send_packed(connection, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ServerConnection, "_receive", receive_or_lose)
        monkeypatch.setattr(ServerConnection, "send", send_or_lose)

    def _is_due(self) -> bool:
        self._commands += 1
        is_due = self._commands % self._every == 0
        self.cuts += is_due
        return is_due


@pytest.mark.parametrize("every", [5, 7, 11])
@pytest.mark.parametrize("known_by", ["row", "id"])
def test_rows_are_added_once_though_connections_are_cut(
    valkey, valkey_url, stream, topic, monkeypatch, every, known_by
):
    rows = [{"data": json.dumps({"number": n}), "order": str(n)} for n in range(1_500)]
    more = {"dedupeColumn": "order"} if known_by == "id" else {}
    breaking = Breaking(monkeypatch, every)

    for place in ({"stream": stream}, {"topic": topic.name}):
        send(valkey_url, rows, attempt_of(), **place, **more)

    assert breaking.cuts > 5
    assert numbers_in(valkey, stream) == list(range(1_500))
    assert numbers_in(valkey, *(topic.keys.stream(number) for number in topic.partitions)) == list(
        range(1_500)
    )


def test_a_full_server_is_waited_for_and_each_row_is_added_once():
    with EmbeddedServer() as server, open_client(server.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1b")
        waiting = threading.Event()

        class Watched(Patience):
            def wait(self, error: QueueError) -> None:
                super().wait(error)
                waiting.set()

        def write() -> None:
            options = WriteOptions.of({"url": server.url, "stream": "orders"})
            with (
                options.address.connect() as own,
                TaskWriter(own, open_target(own, options), options, attempt_of(), Watched(600_000)) as writer,
            ):
                writer.add(pa.RecordBatch.from_pylist(rows_of(range(2_000))))
                writer.finish()

        thread = threading.Thread(target=write)
        thread.start()
        waiting.wait()
        assert client.xlen("orders") == 0
        client.config_set("maxmemory", "0")
        thread.join()

        assert numbers_in(client, "orders") == list(range(2_000))


@pytest.mark.parametrize("state", ["too few replicas", "another script runs", "the disk is full"])
def test_a_server_that_refuses_for_a_while_is_waited_for(tmp_path, state):
    with EmbeddedServer(dir=tmp_path) as server, open_client(server.url) as client:
        with refusing(client, tmp_path, state) as end_refusal:
            waiting = threading.Event()

            class Watched(Patience):
                def wait(self, error: QueueError) -> None:
                    super().wait(error)
                    waiting.set()

            def write() -> None:
                options = WriteOptions.of({"url": server.url, "stream": "orders"})
                with (
                    options.address.connect() as own,
                    TaskWriter(
                        own, open_target(own, options), options, attempt_of(), Watched(600_000)
                    ) as writer,
                ):
                    writer.add(pa.RecordBatch.from_pylist(rows_of(range(2_000))))
                    writer.finish()

            thread = threading.Thread(target=write)
            thread.start()
            waiting.wait()
            end_refusal()
            thread.join()

        assert numbers_in(client, "orders") == list(range(2_000))


@contextmanager
def refusing(client: Client, directory: Path, state: str) -> Iterator[Callable[[], object]]:
    """A server that refuses writes; yields what ends that."""
    if state == "too few replicas":
        client.config_set("min-replicas-to-write", 1)
        yield lambda: client.config_set("min-replicas-to-write", 0)
    elif state == "the disk is full":
        # A snapshot cannot replace a directory.
        (directory / "dump.rdb").mkdir()
        client.config_set("save", "3600 1000000")
        client.bgsave()
        eventually(lambda: persistence_of(client)["rdb_last_bgsave_status"] == "err")
        yield lambda: client.config_set("stop-writes-on-bgsave-error", "no")
    else:
        client.config_set("busy-reply-threshold", 1)
        with suppress(ResponseError), open_client(client_url(client)) as other:
            endless = threading.Thread(target=run_endless_script, args=[other])
            endless.start()
            eventually(lambda: is_busy(client))
            yield client.script_kill
            endless.join()


def persistence_of(client: Client) -> dict[str, Any]:
    info: dict[str, Any] = client.info("persistence")
    return info


def client_url(client: Client) -> str:
    return f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}/0"


def run_endless_script(client: Client) -> None:
    with suppress(ResponseError):
        client.eval("while true do end", 0)


def is_busy(client: Client) -> bool:
    try:
        client.get("any")
    except ResponseError as error:
        return str(error).startswith("BUSY")
    return False


@pytest.mark.parametrize("cluster", [0, 3])
def test_a_wrong_password_is_not_waited_for(cluster):
    with EmbeddedServer(cluster=cluster) as server:
        url, patience = server.url.replace("://", "://nobody:wrong@"), Patience(600_000)
        options = ReadOptions.of({"url": url, "stream": "orders"})

        with pytest.raises(QueueError, match="refused the user or the password"):
            connected(options.address, patience, partial(read_info, stream="orders"))

    assert patience.retries == 0


def test_what_time_does_not_change_is_not_tried_again(valkey_url, stream):
    url = valkey_url.replace("redis://", "redis://nobody:wrong@")

    with pytest.raises(QueueError, match="invalid username"):
        send(url, rows_of([1]), attempt_of(), stream=stream)


def test_a_range_is_read_on_behind_the_last_entry_after_a_cut(valkey, valkey_url, stream, monkeypatch):
    ids = add_orders(valkey, stream, range(600))
    receive, replies = ServerConnection.receive_raw, 0

    def receive_or_lose(connection: ServerConnection, most_bytes: int | None = None) -> object:
        nonlocal replies
        replies += 1
        if replies % 2 == 0:
            connection._connection._sock.close()
        return receive(connection, most_bytes)

    monkeypatch.setattr(ServerConnection, "receive_raw", receive_or_lose)
    within, patience = IdRange(EntryId.parse(ids[0]), EntryId.parse(ids[-1])), Patience(600_000)

    with open_client(valkey_url, protocol=2) as client:
        batches = list(read_range(client, stream, within, fails_on_loss=True, patience=patience))

    numbers = [json.loads(text)["number"] for batch in batches for text in batch.data.to_pylist()]
    assert numbers == list(range(600))
    assert patience.retries > 1


def test_a_query_is_planned_once_its_server_is_back(tmp_path):
    server = EmbeddedServer(dir=tmp_path, port=free_port(), appendonly=True)
    server.start()
    port = int(server.url.partition("127.0.0.1:")[2].partition("/")[0])
    with open_client(server.url) as client:
        add_orders(client, "orders", range(10))
    options = ReadOptions.of({"url": server.url, "stream": "orders", "start": "earliest"})
    server.stop()
    begun: list[dict[str, Any]] = []
    reader = StreamMicroBatchReader(options, SCHEMA)
    thread = threading.Thread(target=lambda: begun.append(reader.initialOffset()))
    thread.start()

    again = EmbeddedServer(dir=tmp_path, port=port, appendonly=True)
    with again:
        thread.join()

    assert [offset["last"] for offset in begun[0].values()] == ["0-0"]
